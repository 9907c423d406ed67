"""What an environment is: tasks, and single-use episodes that can be hashed and forked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rti_exp.types import Evidence, EvidenceLevel, Message, Task


class InfrastructureError(Exception):
    """The environment (not the policy) broke: the trajectory is left out of statistics and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one assistant turn. `reward` means something only when `done`."""

    observations: tuple[Message, ...]
    done: bool
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)


class Episode(Protocol):
    """One attempt at one task; used once."""

    @property
    def messages(self) -> Sequence[Message]:
        """The opening messages: what the policy sees before its first turn."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The agent's tools as JSON-schema functions ({"name", "description", "parameters"})."""
        ...

    def step(self, message: Message) -> StepResult:
        """Carry out one assistant turn.

        A bad tool call (malformed, unknown tool, wrong argument types) is answered with an error
        observation and the episode goes on.

        Raises:
            InfrastructureError: the environment itself broke.
        """
        ...

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """What the roles may be told about this episode as it stands now."""
        ...

    def state_hash(self) -> str:
        """A stable hash of the whole state, the turn count included."""
        ...

    def fork(self, messages: Sequence[Message]) -> Episode:
        """A new episode of the same task, brought forward by replaying these assistant turns."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A set of tasks and a way to start them."""

    max_turns: int
    """Assistant turns an episode may take; then it is truncated."""

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of split "train" or "heldout", in a fixed order.

        Raises:
            ValueError: no such split; the message names those that exist.
        """
        ...

    def start(self, task: Task) -> Episode: ...
