"""Our messages as an OpenAI-compatible endpoint wants them, and its answers as ours.

Whatever an endpoint sends is data: read strictly, and refused with a reason where it is not what the API says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rti_exp.types import Message, ToolCall

MAX_DEPTH = 32
"""Objects and lists inside each other in a tool call's arguments; deeper ones are malformed."""


class BadReply(ValueError):
    """The answer is not what the API says; the message says why."""


class FilteredReply(BadReply):
    """The endpoint's content filter withheld the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply:
    """An answer as it was read. Token counts are None where the endpoint gave none."""

    message: Message
    stop_reason: Literal["stop", "length"]
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_prompt_tokens: int


def to_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as the API's messages.

    Tool calls are numbered in their order, and a tool message answers the earliest call that has none yet. One that
    answers no call (what was meant as a call could not be read) is said by the user, since the API takes no other.
    """
    chat: list[dict[str, Any]] = []
    waiting: list[str] = []
    numbered = 0
    for message in messages:
        content = encodable(message.content)
        if message.role == "tool":
            if waiting:
                chat.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": content})
            else:
                chat.append({"role": "user", "content": f"[tool]\n{content}"})
            continue
        # The API refuses a conversation in which a call stays without an answer.
        chat += [{"role": "tool", "tool_call_id": name, "content": ""} for name in waiting]
        waiting = []
        entry: dict[str, Any] = {"role": message.role, "content": content}
        if message.role == "assistant" and message.tool_calls:
            waiting = [f"call_{numbered + place}" for place in range(len(message.tool_calls))]
            numbered += len(waiting)
            pairs = zip(waiting, message.tool_calls, strict=True)
            entry["tool_calls"] = [_call(name, call) for name, call in pairs]
        chat.append(entry)
    chat += [{"role": "tool", "tool_call_id": name, "content": ""} for name in waiting]
    return chat


def _call(name: str, call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {
        "id": name,
        "type": "function",
        "function": {"name": encodable(call.name), "arguments": encodable(arguments)},
    }


def to_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """JSON-schema functions as the API's tools; those that already are such are left as they are."""
    return [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools]


def encodable(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8 form, as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def read_reply(text: str) -> ReadReply:
    """The answer spelled by the body of a response.

    Raises:
        BadReply: it is no completed answer of the chat API.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"the answer is no JSON ({error})") from error
    if not isinstance(body, dict):
        raise BadReply(f"the answer is a JSON {type(body).__name__}, no object")
    if body.get("error"):
        raise BadReply(f"the answer holds an error: {json.dumps(body['error'])[:300]}")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadReply("the answer has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise BadReply("the answer's first choice has no message")
    usage = _object_of(body, "usage")
    stop_reason = _stop_reason(choices[0].get("finish_reason"))
    return ReadReply(
        message=_cut_off(message) if stop_reason == "length" and _says_nothing(message) else _message(message),
        stop_reason=stop_reason,
        model=body["model"] if isinstance(body.get("model"), str) else "",
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
        cached_prompt_tokens=_count(_object_of(usage, "prompt_tokens_details"), "cached_tokens") or 0,
    )


def _object_of(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Empty where there is none."""
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _stop_reason(reason: Any) -> Literal["stop", "length"]:
    if reason in ("stop", "tool_calls", "function_call"):
        return "stop"
    if reason == "length":
        return "length"
    if reason == "content_filter":
        raise FilteredReply("the endpoint's content filter withheld the answer")
    raise BadReply(f"the answer is not finished: finish_reason is {str(reason)[:40]!r}")


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole else None


def _says_nothing(message: Mapping[str, Any]) -> bool:
    """Whether there is no text, no call, or only thinking that has not ended."""
    content = message.get("content")
    if message.get("tool_calls") or isinstance(message.get("refusal"), str):
        return False
    return content is None or (
        isinstance(content, str)
        and (not content.strip() or (content.lstrip().startswith("<think>") and "</think>" not in content))
    )


def _cut_off(message: Mapping[str, Any]) -> Message:
    """A model that spent all its tokens on thinking: its own failure, which an environment answers, not a lost one."""
    thinking, text = _thinking(message, encodable(message.get("content") or ""))
    thought = thinking or text.strip().removeprefix("<think>").strip()
    return Message(
        role="assistant", content="", malformed="The turn was cut off before anything was said.", thinking=thought
    )


def _message(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise BadReply(f"the answer's content is a JSON {type(content).__name__}, no text")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadReply("the answer's tool_calls are no list")
    if content is None and not calls and not isinstance(message.get("refusal"), str):
        raise BadReply("the answer's message has neither content nor tool calls")
    thinking, text = _thinking(message, encodable(content if content is not None else message.get("refusal") or ""))
    read: list[ToolCall] = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadReply("a tool call of the answer has no function with a name")
        try:
            read.append(ToolCall(name=encodable(function["name"]), arguments=_arguments(function.get("arguments"))))
        except ValueError as error:  # the model's mistake, not the endpoint's: the environment answers it
            shown = text or encodable(json.dumps(calls, ensure_ascii=False))
            return Message(
                role="assistant", content=shown, malformed=f"The tool call's arguments {error}.", thinking=thinking
            )
    return Message(role="assistant", content=text, tool_calls=tuple(read), thinking=thinking)


def _thinking(message: Mapping[str, Any], text: str) -> tuple[str, str]:
    """What the model thought, and the rest of its text: a field of its own, or tags at the start of the text."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return encodable(message[name]), text
    before, ended, rest = text.partition("</think>")
    if ended and before.lstrip().startswith("<think>"):
        return before.lstrip().removeprefix("<think>").strip(), rest.lstrip()
    return "", text


def _arguments(text: Any) -> dict[str, Any]:
    """
    Raises:
        ValueError: not the text of one JSON object that could be written as strict JSON again.
    """
    if not isinstance(text, str):
        raise ValueError("are no text")
    try:
        arguments = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"are not valid JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise ValueError("are nested too deeply") from error
    if not isinstance(arguments, dict):
        raise ValueError("must be a JSON object")
    _check_values(arguments)
    return arguments


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("have the same key twice")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"hold {name}, which is not a JSON number")


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError("hold a number that is too large")
    return float(digits)


def _check_values(arguments: dict[str, Any]) -> None:
    stack: list[tuple[Any, int]] = [(arguments, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str) and value != encodable(value):
            raise ValueError("hold half of a surrogate pair")
        if isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise ValueError("are nested too deeply")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            stack += [(item, depth + 1) for item in inner]
