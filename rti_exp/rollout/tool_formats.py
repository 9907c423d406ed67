"""How tool calls are spelled in an assistant turn: read strictly, written the same way, told to the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rti_exp.config.chat_settings import ToolSchemas
from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call
from rti_exp.types import ToolCall


class CallFormat(Protocol):
    """One way to spell calls. `markers` are the control tokens that an assistant turn may hold."""

    markers: tuple[str, ...]
    instruction: str
    """Tells a model whose template does not: a sentence for the system message."""

    def read(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in a turn's text; none if it is a text to the user.

        Raises:
            MalformedToolCall: it tries to call and fails.
        """
        ...

    def write(self, calls: Sequence[ToolCall]) -> str: ...


class JsonCalls:
    """The whole turn is one JSON object `{"name": ..., "arguments": {...}}`."""

    markers: tuple[str, ...] = ()
    instruction = 'To call a tool, write one JSON object {"name": ..., "arguments": {...}} and nothing else.'

    def read(self, text: str) -> tuple[ToolCall, ...]:
        return (parse_tool_call(text),) if text.lstrip().startswith("{") else ()

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(_written(call) for call in calls)


class HermesCalls:
    """`<tool_call>` around each JSON object, as Qwen and Hermes models write it; text may stand before and between.

    A turn that is one JSON object of exactly the form of a call, without the tags, is read as a call too: an
    environment's own instructions may ask for that.
    """

    markers: tuple[str, ...] = ("<tool_call>", "</tool_call>")
    instruction = 'To call a tool, write <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>.'
    _CALL = re.compile("<tool_call>(.*?)</tool_call>", re.DOTALL)

    def read(self, text: str) -> tuple[ToolCall, ...]:
        rest = self._CALL.sub("", text)
        if any(marker in rest for marker in self.markers):
            raise MalformedToolCall("A <tool_call> and its </tool_call> must stand around each tool call.")
        bodies = self._CALL.findall(text)
        if not bodies and text.lstrip().startswith("{"):
            try:
                return (parse_tool_call(text),)
            except MalformedToolCall:
                return ()
        return tuple(parse_tool_call(body.strip()) for body in bodies)

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"<tool_call>\n{_written(call)}\n</tool_call>" for call in calls)


def _written(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def shown(tools: Sequence[Mapping[str, Any]], schemas: ToolSchemas) -> str:
    """The tools as text for a system message; `short` is `name(argument, other?): description`, one a line."""
    if schemas is ToolSchemas.short:
        return "Tools:\n" + "\n".join(map(_signature, tools))
    return "Tools:\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)


def _signature(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    required = parameters.get("required") or ()
    names = [name if name in required else f"{name}?" for name in parameters.get("properties") or {}]
    description = function.get("description") or ""
    return f"{function['name']}({', '.join(names)})" + (f": {description}" if description else "")
