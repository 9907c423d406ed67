"""Configs as flat keys, and how two differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rti_exp.runs.json_lines import plain

Flat = dict[str, Any]
ABSENT = object()


def flatten(config: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested config as {"gate.delta": 5.0, ...}; lists stay values; an empty mapping is itself a value."""
    flat: Flat = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """(key, value of `first`, value of `second`) where two nested configs differ; `ABSENT` where one has no such key.

    Keys stand in the order of `first`, those of `second` only after them; 5 and 5.0 are equal.
    """
    one, other = flatten(first), flatten(second)
    keys = dict.fromkeys([*one, *other])
    pairs = [(key, one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys]
    return [pair for pair in pairs if not _same(pair[1], pair[2])]


def _same(first: Any, second: Any) -> bool:
    if first is ABSENT or second is ABSENT:
        return first is second
    # bool is an int to Python, but true and 1 are different settings; plain() makes NaN equal to NaN.
    return isinstance(first, bool) == isinstance(second, bool) and plain(first) == plain(second)
