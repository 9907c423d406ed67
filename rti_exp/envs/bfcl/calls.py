"""Calls to the APIs: read from the reference's Python text, and bounded before they are carried out."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LARGEST_PRECISION = 10_000
"""Digits that a call may ask for."""
LARGEST_BITS = 100_000
"""Bits of the largest integer that a power may have."""


class Refused(ValueError):
    """The call would take the process down; the message is an answer to whoever made it."""


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
        raise ValueError(f"no call: {text!r}") from error
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"no call of a plain name: {text!r}")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError(f"a starred argument: {text!r}")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return Call(
        name=node.func.id, positional=tuple(ast.literal_eval(value) for value in node.args), arguments=arguments
    )


def check_size(call: Call) -> None:
    """Arithmetic without end: powers and precisions that no answer needs.

    Raises:
        Refused: the call asks for one.
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
