"""Calls to the APIs: parsed from the reference's Python text, and checked for size before execution."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST_PRECISION = 10_000
"""Digits that a call may request."""
LARGEST_BITS = 100_000
"""Bits of the largest result of a power."""


class Refused(ValueError):
    """The call would exhaust the process; the message is the answer to the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    positional: Sequence[Any] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


def parse_call(text: str) -> Call:
    """A call such as `mv(source='a', destination='b')`; arguments are literals, and nothing is evaluated.

    Raises:
        ValueError: the text is anything else.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not a call: {text!r}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"not a call of a plain name: {text!r}")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"a starred argument: {text!r}")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return Call(
        name=node.func.id, positional=tuple(ast.literal_eval(value) for value in node.args), arguments=arguments
    )


def check_size(call: Call) -> None:
    """Reject powers and precisions far beyond any task's needs.

    Raises:
        Refused: the call requests such a power or precision.
    """
    for name in ("precision", "decimal_places"):
        value = call.arguments.get(name)
        if isinstance(value, int) and abs(value) > LARGEST_PRECISION:
            raise Refused(f"{name} must be at most {LARGEST_PRECISION}")
    if call.name != "power":
        return
    base, exponent = call.arguments.get("base"), call.arguments.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        bits = math.log2(abs(base)) * abs(exponent) if abs(exponent) < 2**63 else math.inf
        if bits > LARGEST_BITS:
            raise Refused("the result would be too large")
