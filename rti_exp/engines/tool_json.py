"""Reading the JSON of a tool call that a model wrote.

What is accepted can always be written as strict JSON again. Line breaks and other control characters in strings are
accepted, since models and servers write them as they are. Every error is a sentence for the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 32
"""The deepest nesting of objects and lists. Deeper values are refused, because code that walks them may recurse."""


class MalformedToolCall(ValueError):
    """The text is not a tool call. The message is a sentence that tells its author what is wrong."""


def read_tool_json(text: str) -> Any:
    """The JSON value that `text` spells.

    Raises:
        MalformedToolCall: not JSON; or a duplicate key, NaN, an infinite number, a lone surrogate, or nesting beyond
            `MAX_DEPTH`.
    """
    try:
        value = json.loads(
            text,
            strict=False,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except json.JSONDecodeError as error:
        raise MalformedToolCall(f"The tool call is not valid JSON: {error.msg} at character {error.pos}.") from error
    except RecursionError as error:
        raise MalformedToolCall("The tool call is nested too deeply.") from error
    except MalformedToolCall:
        raise
    except ValueError as error:  # an integer with thousands of digits
        raise MalformedToolCall("The tool call holds a number that is too long.") from error
    _check_contents(value)
    return value


def require_arguments(value: Any) -> Mapping[str, Any]:
    """The arguments; an empty text and null are no arguments.

    Raises:
        MalformedToolCall: they are anything else than an object.
    """
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise MalformedToolCall('The "arguments" of the tool call must be an object.')
    return value


def read_arguments(value: Any) -> Mapping[str, Any]:
    """The arguments of a call as an endpoint sends them: JSON text, an object itself, or nothing.

    Raises:
        MalformedToolCall: they are anything else.
    """
    if isinstance(value, str):
        return require_arguments(read_tool_json(value) if value.strip() else None)
    _check_contents(value)
    return require_arguments(read_tool_json(json.dumps(value)))


def numbered(reason: str, number: int, count: int) -> str:
    """Why call `number` (from 1) of a turn's `count` calls cannot be read."""
    return reason if count == 1 else f"Call {number} of {count}: {reason}"


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise MalformedToolCall("The tool call has the same key twice.")
    return result


def _refuse_constant(name: str) -> None:
    raise MalformedToolCall(f"The tool call holds {name}, which is not a JSON number.")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise MalformedToolCall("The tool call holds a number that is too large.")
    return number


def _check_contents(root: Any) -> None:
    stack: list[tuple[Any, int]] = [(root, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise MalformedToolCall("The tool call holds half of a surrogate pair.")
        if isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise MalformedToolCall("The tool call is nested too deeply.")
            inner = [*value, *value.values()] if isinstance(value, dict) else value
            stack += [(item, depth + 1) for item in inner]
