"""What a task family is: a request, tools over a state, a goal, and where agents usually succeed and fail.

To add a family, write one file in `families/` with a subclass of `Family` and name it in
`families/__init__.py`; CONTRIBUTING.md describes the steps.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rti_exp.envs.town.names import Names

Payload = Mapping[str, Any]
State = dict[str, Any]


class ToolError(Exception):
    """A tool was used wrongly; the agent gets the text and the episode continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One of the agent's tools. All arguments are strings; every tool also takes an optional `note`."""

    name: str
    description: str
    parameters: tuple[str, ...]
    run: Callable[[Payload, State, Mapping[str, str]], str]
    """(payload, state, arguments) -> the text that the agent sees; may change the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misstep:
    """A harmful action that an untrained agent tends to take at step `step`, and what it does after it."""

    step: int
    action: str
    reason: str
    then: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The right actions of a task, with the place where agents go wrong. Used for pretraining and probes."""

    actions: tuple[str, ...]
    critical_step: int
    misstep: Misstep
    shortcut: str
    """The terminal call with the goal's value: right in the end, but at the critical step a leak,
    since the value has not been seen yet."""
    guess_template: str
    """`shortcut` with {number} in place of the value: what a guessing agent calls."""


class Family(ABC):
    """One kind of task. Stateless: everything about a task is in its payload."""

    name: ClassVar[str]
    tools: ClassVar[tuple[Tool, ...]]

    @abstractmethod
    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        """A payload (plain JSON) with at least `goal` and `confirmation` and `wrong_confirmation`."""

    @abstractmethod
    def request(self, payload: Payload) -> str:
        """The user's opening message."""

    @abstractmethod
    def goal(self, payload: Payload) -> tuple[str, str]:
        """(name, text) of the condition on the state, for the rubric; the text holds the goal's value."""

    @abstractmethod
    def plan(self, payload: Payload) -> Plan: ...

    def user_reply(self, payload: Payload, state: State, text: str) -> str | None:
        """What the user answers to a text of the agent; None: nothing more to say, the episode ends."""
        return None


def call(name: str, **arguments: str) -> str:
    """A tool call as the agent writes it."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def settle(payload: Payload, state: State, value: str) -> str:
    """Record that a terminal tool was called with `value`, and return the confirmation number to report."""
    state["settled"] = value
    state["confirmation"] = payload["confirmation"] if value == payload["goal"] else payload["wrong_confirmation"]
    return state["confirmation"]


def report(payload: Payload) -> str:
    """The right final message."""
    return f"Done: {payload['confirmation']}."


def report_wrong(payload: Payload) -> str:
    return f"Done: {payload['wrong_confirmation']}."


GIVE_UP = "Sorry."
