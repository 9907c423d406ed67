"""Conditions of success that can be checked, as a task file states them.

A condition is a JSON object with `check`, the name of one of `CHECKS`, the fields of that check, and `text`, the
condition as the roles see it; `name` (default: the check's number) names it in the reward's parts.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    name: str
    arguments: Mapping[str, Any]
    answer: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An episode's calls in order, the policy's last message (None before the end), and the state that the server's
    `state_tool` reports ("" without such a tool)."""

    calls: tuple[CallRecord, ...]
    answer: str | None
    state: str


class Check(Protocol):
    def met(self, record: Record) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A tool was called with (at least) these arguments, and the call did not fail. `last`: so was its last call."""

    tool: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    last: bool = False

    def met(self, record: Record) -> bool:
        calls = [call for call in record.calls if call.name == self.tool and not call.failed]
        return any(
            all(name in call.arguments and same(call.arguments[name], value) for name, value in self.arguments.items())
            for call in (calls[-1:] if self.last else calls)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCalled(Called):
    """There was no such call."""

    def met(self, record: Record) -> bool:
        return not Called.met(self, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerContains:
    """The last message contains one of these texts; case and spaces do not matter."""

    any_of: Sequence[str]

    def met(self, record: Record) -> bool:
        answer = plain(record.answer or "")
        return any(plain(text) in answer for text in self.any_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNumber:
    """The last number of the last message is within `tolerance` of `value`."""

    value: float
    tolerance: float = 0.0

    def met(self, record: Record) -> bool:
        numbers = _NUMBER.findall(_THOUSANDS.sub("", record.answer or ""))
        return bool(numbers) and abs(float(numbers[-1]) - self.value) <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class StateContains:
    """The state tool's last answer contains this text."""

    contains: str

    def met(self, record: Record) -> bool:
        return plain(self.contains) in plain(record.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judge model says yes to the question about the conversation."""

    question: str

    def met(self, record: Record) -> bool:
        raise TypeError("a judge's condition is decided by the judge")


CHECKS: Mapping[str, type[Any]] = {
    "called": Called,
    "not_called": NotCalled,
    "answer_contains": AnswerContains,
    "answer_number": AnswerNumber,
    "state_contains": StateContains,
    "judge": Judged,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    name: str
    text: str
    check: Check


def read_condition(node: Any, number: int) -> Condition:
    """
    Raises:
        ValueError: not a condition; the message says what is expected.
    """
    if not isinstance(node, Mapping) or node.get("check") not in CHECKS:
        raise ValueError(f"condition {number}: must be an object with check, one of {', '.join(CHECKS)}")
    cls = CHECKS[node["check"]]
    given = {key: value for key, value in node.items() if key not in ("check", "text", "name")}
    fields = {entry.name: entry for entry in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for name in given:
        if name not in fields:
            raise ValueError(f"condition {number}: {node['check']} has no {name}; it has {', '.join(fields)}")
    for name, entry in fields.items():
        needed = entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
        if (needed and name not in given) or (name in given and not _fits(given[name], hints[name])):
            raise ValueError(f"condition {number}: {node['check']} needs {name}, {_words(hints[name])}")
    text = node.get("text")
    if not isinstance(text, str) or not text:
        raise ValueError(f"condition {number}: needs text, the condition as the roles see it")
    return Condition(name=str(node.get("name", f"condition_{number}")), text=text, check=cls(**given))


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint in (str, bool):
        return isinstance(value, hint)
    if typing.get_origin(hint) is not None and issubclass(typing.get_origin(hint), Mapping):
        return isinstance(value, Mapping)
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _words(hint: Any) -> str:
    simple = {float: "a finite number", str: "text", bool: "true or false"}
    if hint in simple:
        return simple[hint]
    return "an object" if issubclass(typing.get_origin(hint) or object, Mapping) else "a list of texts"


def same(given: Any, expected: Any) -> bool:
    """Whether two arguments are equal: 5, 5.0 and "5" are; case and spaces do not matter."""
    if isinstance(given, bool) or isinstance(expected, bool):
        return given is expected
    if isinstance(given, int | float | str) and isinstance(expected, int | float | str):
        return plain(_digits(given)) == plain(_digits(expected))
    return given == expected


def _digits(value: float | str) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def plain(text: str) -> str:
    return " ".join(text.casefold().split())
