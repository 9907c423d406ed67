"""How tool calls are written in an assistant turn: each read by itself, written alike, explained to the model."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rti_exp.config.chat_settings import ToolSchemas
from rti_exp.engines.model_text import TOOL_CALL, TOOL_CALL_END, json_end, tags_in
from rti_exp.engines.tool_json import MalformedToolCall, numbered, read_tool_json, require_arguments
from rti_exp.types import ToolCall

Span = tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a sampled turn's text has tokens: `tags` of calls and thinking, and `control` tokens of any other kind."""

    tags: frozenset[int] = frozenset()
    control: frozenset[int] = frozenset()

    def after(self, start: int) -> Places:
        """The places in the text from `start` on."""
        return Places(
            tags=frozenset(place - start for place in self.tags if place >= start),
            control=frozenset(place - start for place in self.control if place >= start),
        )


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

    def read(self, text: str, places: Places | None = None) -> tuple[tuple[ToolCall, ...], str | None]:
        """The calls in a turn's text that can be read, and why the others cannot.

        Without calls and without a reason the turn is text for the user. `places` None: every tag that is spelled
        counts, and there is no control token.
        """
        ...

    def write(self, calls: Sequence[ToolCall]) -> str: ...


class JsonCalls:
    """The turn is exactly one JSON object `{"name": ..., "arguments": {...}}`. `null` and `[]` are attempts at one."""

    markers: tuple[str, ...] = ()
    instruction = 'To call a tool, write one JSON object {"name": ..., "arguments": {...}} and nothing else.'

    def read(self, text: str, places: Places | None = None) -> tuple[tuple[ToolCall, ...], str | None]:
        if not text.lstrip().startswith("{") and text.strip() not in ("null", "[]"):
            return (), None
        return _read([(0, len(text))], text, places)

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(_json_of, calls))


class HermesCalls:
    """`<tool_call>` around each JSON object, as Qwen and Hermes models write it; text may come before and between.

    A call ends where its JSON ends, so that its arguments may spell the tags. A turn that is exactly one such JSON
    object without the tags is read as a call too, because an environment's own instructions may ask for that.
    """

    markers: tuple[str, ...] = (TOOL_CALL, TOOL_CALL_END)
    instruction = 'To call a tool, write <tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>.'

    def read(self, text: str, places: Places | None = None) -> tuple[tuple[ToolCall, ...], str | None]:
        spans = self._spans(text, None if places is None else places.tags)
        if not spans and text.lstrip().startswith("{"):
            try:
                parse_tool_call(text)
            except MalformedToolCall:
                return (), None
            return _read([(0, len(text))], text, places)
        return _read(spans, text, places)

    def _spans(self, text: str, tags: Collection[int] | None) -> list[Span]:
        """Start and end of each attempt at a call, in order; None for a tag without its partner."""
        spans: list[Span] = []
        start: int | None = None
        for place, name in tags_in(text, self.markers):
            if name == TOOL_CALL_END and start is not None and json_end(text, start) is not None:
                pass  # the end of a call's JSON is clear, in whichever ids its tag is written
            elif tags is not None and place not in tags:
                continue
            if name == TOOL_CALL:
                spans += [None] if start is not None else []
                start = place + len(name)
            else:
                spans.append(None if start is None else (start, place))
                start = None
        return [*spans, None] if start is not None else spans

    def write(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(f"<tool_call>\n{_json_of(call)}\n</tool_call>" for call in calls)


def _read(spans: Sequence[Span], text: str, places: Places | None) -> tuple[tuple[ToolCall, ...], str | None]:
    """Each call by itself: the readable ones, and what is wrong with the others."""
    calls: list[ToolCall] = []
    reasons: list[str] = []
    for number, span in enumerate(spans, start=1):
        try:
            calls.append(_call_in(span, text, places))
        except MalformedToolCall as error:
            reasons.append(numbered(str(error), number, len(spans)))
    return tuple(calls), " ".join(reasons) or None


def _call_in(span: Span, text: str, places: Places | None) -> ToolCall:
    if span is None:
        raise MalformedToolCall("A <tool_call> and its </tool_call> must stand around each tool call.")
    start, end = span
    if places is not None and any(start <= place < end for place in places.control):
        raise MalformedToolCall("The tool call holds a control token.")
    return parse_tool_call(text[start:end])


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
