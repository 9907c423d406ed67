"""How tool calls are written in an assistant turn: read strictly, written the same way, explained to the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rti_exp.config.chat_settings import ToolSchemas
from rti_exp.engines.tool_json import MalformedToolCall, read_tool_json, require_arguments
from rti_exp.types import ToolCall


def parse_tool_call(text: str) -> ToolCall:
    """The call in `text`: one strict JSON object with exactly `name`, a string, and `arguments`, an object.

    Raises:
        MalformedToolCall: the text is anything else, or holds bytes that are not UTF-8.
    """
    if "\ufffd" in text:
        raise MalformedToolCall("The tool call holds bytes that are not valid UTF-8.")
    call = read_tool_json(text)
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise MalformedToolCall('The tool call must be one JSON object with exactly "name" and "arguments".')
    if not isinstance(call["name"], str):
        raise MalformedToolCall('The "name" of the tool call must be a string.')
    return ToolCall(name=call["name"], arguments=require_arguments(call["arguments"]))


class CallFormat(Protocol):
    """One way to write calls. `markers` are the control tokens that an assistant turn may contain."""

    markers: tuple[str, ...]
    instruction: str
    """A sentence for the system message, for models whose chat template does not explain the format."""

    def read(self, text: str) -> tuple[ToolCall, ...]:
        """The calls in a turn's text; empty if the turn is text for the user.

        Raises:
            MalformedToolCall: the turn attempts a call and fails.
        """
        ...

    def write(self, calls: Sequence[ToolCall]) -> str: ...


class JsonCalls:
    """The turn is exactly one JSON object `{"name": ..., "arguments": {...}}`."""

    markers: tuple[str, ...] = ()
    instruction = 'To call a tool, write one JSON object {"name": ..., "arguments": {...}} and nothing else.'

    def read(self, text: str) -> tuple[ToolCall, ...]:
        return (parse_tool_call(text),) if text.lstrip().startswith("{") else ()

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(_json_of, calls))


class HermesCalls:
    """`<tool_call>` around each JSON object, as Qwen and Hermes models write it; text may come before and between.

    A turn that is exactly one such JSON object without the tags is read as a call too, because an environment's own
    instructions may ask for that.
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
        return "\n".join(f"<tool_call>\n{_json_of(call)}\n</tool_call>" for call in calls)


def _json_of(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def tools_text(tools: Sequence[Mapping[str, Any]], schemas: ToolSchemas) -> str:
    """The tools for a system message; `short` gives each a line `name(argument, optional?): description`."""
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
