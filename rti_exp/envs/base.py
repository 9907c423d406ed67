"""The environment protocols: tasks, and single-use episodes that can be hashed and forked.

Failures have two classes, and every environment classifies them the same way:

- The policy's mistake: a malformed tool call, an unknown tool, wrong arguments, text that the environment cannot use.
  `step` answers it with an error observation and the episode continues, or the episode ends with a low reward.
- An infrastructure failure: the environment, a service, a judge or a simulated user broke, did not answer in time, or
  a replay led to another state. The environment raises `InfrastructureError`; callers treat any other exception the
  same way. The trajectory has no reward, is excluded from statistics and is counted.

Two exceptions are neither and end the run: `rti_exp.engines.base.EngineUnusable`, if an endpoint behind the
environment refuses every request, and `ValueError` or `SettingsError` for invalid options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rti_exp.types import Evidence, EvidenceLevel, Message, Task


class InfrastructureError(Exception):
    """The environment broke, through no fault of the policy; see the module docstring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one assistant turn. `reward` and `reward_parts` count only if `done`."""

    observations: tuple[Message, ...]
    done: bool
    reward: float = 0.0
    reward_parts: Mapping[str, float] = field(default_factory=dict)


class Episode(Protocol):
    """One attempt at one task; used once.

    Every method may raise InfrastructureError.
    """

    @property
    def messages(self) -> Sequence[Message]:
        """The opening messages: what the policy sees before its first turn."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The policy's tools as JSON-schema functions ({"name", "description", "parameters"}).

        They may change with a step, which then also announces the change in an observation: a prompt is only appended
        to, so a local policy sees the tools of the opening. An endpoint with native calls gets the current ones.
        """
        ...

    def step(self, message: Message) -> StepResult:
        """Carry out one assistant turn.

        Raises:
            InfrastructureError: the environment broke. A mistake of the policy never raises.
        """
        ...

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """The evidence that the roles may see about the episode in its current state."""
        ...

    def state_hash(self) -> str:
        """A stable hash of the full state, including the turn count."""
        ...

    def fork(self, messages: Sequence[Message]) -> Episode:
        """A new episode of the same task, after a replay of these assistant turns from the start."""
        ...


@runtime_checkable
class Environment(Protocol):
    """A set of tasks and a way to start them. `rti_exp.envs.contract` checks what it gives."""

    max_turns: int
    """Assistant turns that an episode may take before it is truncated."""

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of split "train" or "heldout", in a fixed order; each id occurs once in a split.

        Raises:
            ValueError: there is no such split; the message names the valid ones.
        """
        ...

    def start(self, task: Task) -> Episode:
        """A new episode of the task.

        Raises:
            InfrastructureError: the environment broke.
        """
        ...
