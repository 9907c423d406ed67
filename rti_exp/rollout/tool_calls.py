"""Reading a tool call out of an assistant turn: strict JSON, or a plain sentence that says what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

from rti_exp.types import ToolCall

MAX_DEPTH = 32
"""Objects and lists inside each other; deeper ones are refused, since those who walk them may recurse."""


class MalformedToolCall(ValueError):
    """The text is no tool call; the message is a sentence for whoever wrote it."""


def parse_tool_call(text: str) -> ToolCall:
    """The call spelled by `text`: one JSON object with exactly `name`, a string, and `arguments`, an object.

    Duplicate keys, NaN and infinite numbers, lone surrogates, undecodable bytes and nesting beyond `MAX_DEPTH`
    are refused, so that a call can always be written as strict JSON again.

    Raises:
        MalformedToolCall: the text is anything else.
    """
    if "\ufffd" in text:
        raise MalformedToolCall("The tool call holds bytes that are not valid UTF-8.")
    try:
        call = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise MalformedToolCall(f"The tool call is not valid JSON: {error.msg} at character {error.pos}.") from error
    except RecursionError as error:
        raise MalformedToolCall("The tool call is nested too deeply.") from error
    except MalformedToolCall:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise MalformedToolCall("The tool call holds a number that is too long.") from error
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        raise MalformedToolCall('The tool call must be one JSON object with exactly "name" and "arguments".')
    if not isinstance(call["name"], str):
        raise MalformedToolCall('The "name" of the tool call must be a string.')
    if not isinstance(call["arguments"], dict):
        raise MalformedToolCall('The "arguments" of the tool call must be an object.')
    _check_contents(call)
    return ToolCall(name=call["name"], arguments=call["arguments"])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise MalformedToolCall("The tool call has the same key twice.")
    return result


def _no_constant(name: str) -> None:
    raise MalformedToolCall(f"The tool call holds {name}, which is not a JSON number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise MalformedToolCall("The tool call holds a number that is too large.")
    return number


def _check_contents(call: dict[str, Any]) -> None:
    stack: list[tuple[Any, int]] = [(call, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise MalformedToolCall("The tool call holds half of a surrogate pair.")
        if isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                raise MalformedToolCall("The tool call is nested too deeply.")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            stack += [(item, depth + 1) for item in inner]
