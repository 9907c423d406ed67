"""Conversion of our messages to the chat API's form, and of its answers to ours.

Whatever an endpoint sends is data. It is read strictly, and refused with a reason where it does not follow the API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rti_exp.engines.model_text import UNENDED_THINKING, split_thinking
from rti_exp.engines.tool_json import MalformedToolCall, numbered, read_arguments
from rti_exp.types import Message, ToolCall

_OPAQUE = re.compile(r"reasoning|thinking|thought|signature|extra_content|provider_specific")
"""Names of fields that an endpoint expects back as it sent them, in a message or in a call."""
_CUT_OFF = frozenset({"length", "max_tokens", "MAX_TOKENS", "model_length", "model_context_window_exceeded"})
_UNFINISHED = frozenset({"error", "abort", "cancelled", "insufficient_system_resource"})
"""Reasons under which even an answer with text is only a part; any other reason ends a whole answer."""


class BadReply(ValueError):
    """The answer does not follow the API; the message says why."""


class ErrorReply(BadReply):
    """The answer holds an error, `error`, in place of choices."""

    def __init__(self, error: Any) -> None:
        super().__init__(f"the answer holds an error: {json.dumps(error)[:300]}")
        self.error = error


class FilteredReply(BadReply):
    """The endpoint's content filter withheld the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. Token counts are None where the endpoint reported none."""

    message: Message
    stop_reason: Literal["stop", "length"]
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    from_cache: bool = False


def to_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation in the API's form.

    A call keeps the id that the endpoint gave it, if no earlier call has the same. Any other call gets an id of nine
    letters and digits, which every endpoint accepts. A tool message answers the earliest call without an answer. Calls
    that stay unanswered get an empty answer, because the API requires one. A tool message without such a call (the
    call could not be read) becomes a user message, because the API accepts nothing else.
    """
    chat: list[dict[str, Any]] = []
    unanswered: list[str] = []
    taken: set[str] = set()
    for message in messages:
        content = encodable(message.content)
        if message.role == "tool":
            if unanswered:
                chat.append(_tool_answer(unanswered.pop(0), content))
            else:
                chat.append({"role": "user", "content": f"[tool]\n{content}"})
            continue
        chat += [_tool_answer(call_id, "") for call_id in unanswered]
        unanswered = []
        entry: dict[str, Any] = {"role": message.role, "content": content, **message.opaque}
        for call in message.tool_calls:
            unanswered.append(_call_id(call, taken))
            taken.add(unanswered[-1])
        if message.tool_calls:
            entry["tool_calls"] = list(map(_call, unanswered, message.tool_calls))
        chat.append(entry)
    return chat + [_tool_answer(call_id, "") for call_id in unanswered]


def _tool_answer(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _call_id(call: ToolCall, taken: Collection[str]) -> str:
    sent = call.opaque.get("id")
    if sent and sent not in taken:
        return sent
    return next(call_id for number in range(len(taken) + 1) if (call_id := f"call{number:05d}") not in taken)


def _call(call_id: str, call: ToolCall) -> dict[str, Any]:
    arguments = encodable(json.dumps(dict(call.arguments), ensure_ascii=False))
    function = {"name": encodable(call.name), "arguments": arguments}
    return {**call.opaque, "id": call_id, "type": "function", "function": function}


def to_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """JSON-schema functions as the API's tools; tools already in the API's form are kept."""
    return [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools]


def encodable(text: str) -> str:
    """The text with question marks for lone surrogates, which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_reply(text: str) -> Reply:
    """The answer in the body of a response.

    Raises:
        BadReply: not a complete answer of the chat API.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the answer is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise BadReply(f"the answer is a JSON {type(body).__name__}, not an object")
    if body.get("error"):
        raise ErrorReply(body["error"])
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadReply("the answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise BadReply("the answer's first choice has no message")
    stop_reason = _stop_reason(choices[0].get("finish_reason"))
    return Reply(
        message=_message(message, cut_off=stop_reason == "length"),
        stop_reason=stop_reason,
        model=body["model"] if isinstance(body.get("model"), str) else "",
        prompt_tokens=_count(body.get("usage"), "prompt_tokens"),
        completion_tokens=_count(body.get("usage"), "completion_tokens"),
    )


def _stop_reason(reason: Any) -> Literal["stop", "length"]:
    if reason == "content_filter":
        raise FilteredReply("the endpoint's content filter withheld the answer")
    if not isinstance(reason, str) or reason in _UNFINISHED:
        raise BadReply(f"the answer is not finished: finish_reason is {str(reason)[:40]!r}")
    return "length" if reason in _CUT_OFF else "stop"


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value >= 0 else None


def _message(message: Mapping[str, Any], *, cut_off: bool) -> Message:
    content = _text(message.get("content"))
    if content is None and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadReply("the answer's tool_calls are not a list")
    if content is None and not calls and not cut_off:
        raise BadReply("the answer's message has neither content nor tool calls")
    opaque = _opaque(message)
    thinking, text = _thinking_and_text(message, encodable(content or ""))
    if not calls and (text is None or (cut_off and not text.strip())):
        # The model spent all its tokens on thinking. That is its own failure, and the environment answers it.
        malformed = "The turn was cut off before anything was said." if cut_off else UNENDED_THINKING
        return Message(role="assistant", content="", malformed=malformed, thinking=thinking, opaque=opaque)
    tool_calls, unreadable, reasons = [], [], []
    for number, call in enumerate(calls, start=1):
        try:
            tool_calls.append(_read_call(call))
        except MalformedToolCall as error:  # the model's mistake, not the endpoint's
            unreadable.append(call)
            reasons.append(numbered(str(error), number, len(calls)))
    shown = text or (encodable(json.dumps(unreadable, ensure_ascii=False)) if unreadable else "")
    return Message(
        role="assistant",
        content=shown,
        tool_calls=tuple(tool_calls),
        malformed=" ".join(reasons) or None,
        thinking=thinking,
        opaque=opaque,
    )


def _text(content: Any) -> str | None:
    """The text of a message's content, which is a text or a list of chunks, of which only text is said.

    Raises:
        BadReply: any other content.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadReply(f"the answer's content is a JSON {type(content).__name__}, not text")
    return _chunks(content, "text")


def _chunks(content: Sequence[Any], kind: Literal["text", "thinking"]) -> str:
    return "".join(_chunk(chunk, kind) for chunk in content)


def _chunk(chunk: Any, kind: Literal["text", "thinking"]) -> str:
    """The text of a chunk of this kind; nothing for a chunk of another kind."""
    if isinstance(chunk, str):
        return chunk if kind == "text" else ""
    if not isinstance(chunk, dict) or not isinstance(chunk.get("type", "text"), str):
        raise BadReply("a chunk of the answer's content is neither text nor an object with a type")
    if chunk.get("type", "text") not in (kind, f"output_{kind}"):
        return ""
    value = chunk.get(kind)
    if kind == "thinking" and isinstance(value, list):  # the text of a thinking chunk may come in chunks itself
        return _chunks(value, "text")
    if not isinstance(value, str):
        raise BadReply(f"a {kind} chunk of the answer's content has no {kind}")
    return value


def _opaque(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message or a call that the endpoint expects back as it sent them.

    Raises:
        BadReply: they hold a number that JSON cannot express.
    """
    kept = {name: value for name, value in fields.items() if _OPAQUE.search(name) and value}
    content = fields.get("content")
    if isinstance(content, list) and any(isinstance(chunk, dict) and chunk.get("type") != "text" for chunk in content):
        kept["content"] = content
    try:
        return json.loads(encodable(json.dumps(kept, ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the answer holds fields that cannot be sent back ({error})") from error


def _thinking_and_text(message: Mapping[str, Any], text: str) -> tuple[str, str | None]:
    """(thinking, rest). Thinking comes in a field, in chunks, or in the text. The rest is None if it did not end."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str) and message[name]:
            return encodable(message[name]), text
    if isinstance(message.get("content"), list) and (chunks := _chunks(message["content"], "thinking")):
        return encodable(chunks), text
    return split_thinking(text)


def _read_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadReply("a tool call of the answer has no function with a name")
    opaque = _opaque(call)
    if isinstance(call.get("id"), str):
        opaque["id"] = encodable(call["id"])
    arguments = read_arguments(function.get("arguments"))
    return ToolCall(name=encodable(function["name"]), arguments=arguments, opaque=opaque)
