"""Reading the roles' answers: strict JSON, or unreadable.

A judge's answer decides what is trained, so nothing is guessed: no truthiness (`1`, `"true"`), no duplicate, missing or
extra keys, no NaN, no text around the object but thinking and a code fence.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from rti_exp.engines.model_text import verdict_text


class Unreadable(ValueError):
    """The answer does not have the required form; the message says why."""


def read_harmful(text: str) -> tuple[bool, str]:
    """The validator's answer `{"harmful": bool, "reason"?: str}` as (harmful, reason).

    Raises:
        Unreadable: anything else.
    """
    answer = _read_object(text, required={"harmful"}, optional={"reason"})
    reason = answer.get("reason", "")
    if not isinstance(reason, str):
        raise Unreadable('"reason" is not a string')
    try:
        reason.encode("utf-8")
    except UnicodeEncodeError as error:
        # An escaped lone surrogate is valid JSON, but no tokenizer can encode it for the corrector.
        raise Unreadable('"reason" is not valid text') from error
    return _boolean(answer, "harmful"), reason


def read_pass(text: str) -> bool:
    """The verifier's answer `{"pass": bool}`.

    Raises:
        Unreadable: anything else.
    """
    return _boolean(_read_object(text, required={"pass"}, optional=set()), "pass")


def _boolean(answer: dict[str, Any], key: str) -> bool:
    if not isinstance(answer[key], bool):
        raise Unreadable(f'"{key}" is neither true nor false')
    return answer[key]


def _read_object(text: str, *, required: set[str], optional: set[str]) -> dict[str, Any]:
    try:
        answer = json.loads(
            verdict_text(text),
            strict=False,
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(answer, dict):
        raise Unreadable("not an object")
    if not required <= answer.keys() <= required | optional:
        raise Unreadable(f"keys {sorted(answer)}")
    return answer


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise Unreadable("duplicate key")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not JSON")
