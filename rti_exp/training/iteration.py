"""One finished RL iteration as all ranks saw it, and the costs that its stages report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rti_exp.types import Group, Outcome, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What the optimizer steps of an iteration did. Means are per trained token; None without a step."""

    steps: int = 0
    trained_tokens: int = 0
    policy_loss: float | None = None
    kl: float | None = None
    """In nats; None also without a reference."""
    clip_share: float | None = None
    ratio_max: float | None = None
    entropy: float | None = None
    """In nats."""
    gradient_norm: float | None = None
    """Before clipping, mean over the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """An RL iteration over the tasks of all ranks.

    `tokens` counts generated (rollouts, a teacher's included, and continuations), scored (log-probs of a reference
    or a teacher), role_generated and role_scored (validator, corrector, verifier, gate and pi_cal, whichever model
    plays them). No token is counted twice. `seconds` has rollout (continuations included), roles, score, update and
    iteration, each of the slowest rank.
    """

    number: int
    groups: Sequence[Group]
    """In the order of the tasks; groups that replace groups without signal come last."""
    advantages: Sequence[Sequence[float]]
    """One value for each of a group's `trajectories`."""
    samples: Sequence[Sequence[Sample | None]]
    """The trained part of each of a group's `trajectories`; None where nothing was trained."""
    update: UpdateStats = UpdateStats()
    tokens: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    refills: int = 0
    """Groups rolled out by dynamic sampling to replace groups without signal."""

    @property
    def accepted(self) -> int:
        """Accepted corrections."""
        records = (record for group in self.groups for record in group.interventions)
        return sum(record.outcome is Outcome.ACCEPTED for record in records)


class Stopwatch:
    """Seconds of wall clock by phase, summed over the uses of a phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add({phase: time.perf_counter() - start})

    def add(self, seconds: Mapping[str, float]) -> None:
        for phase, value in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value

    def take(self, phase: str) -> float:
        """The seconds of a phase so far; the phase restarts at 0."""
        return self.seconds.pop(phase, 0.0)


class StageCost(Protocol):
    """The cost of a stage on this rank; keys as in `Iteration`."""

    @property
    def tokens(self) -> Mapping[str, int]: ...
    @property
    def seconds(self) -> Mapping[str, float]: ...


def has_signal(advantages: Sequence[float]) -> bool:
    """Whether a group teaches anything: some advantage is not 0."""
    return any(value != 0 for value in advantages)


class CollectedGroups:
    """The groups of an iteration while its rounds are rolled out: groups of all ranks, costs of this rank."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.advantages: list[list[float]] = []
        self.tokens: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.round_sizes: list[int] = []

    def add(self, groups: Sequence[Group], advantages: Sequence[list[float]], *costs: StageCost) -> None:
        """Adds one round; its groups and advantages are of all ranks, the costs of this rank."""
        self.groups += groups
        self.advantages += advantages
        self.round_sizes.append(len(groups))
        for cost in costs:
            for name, count in cost.tokens.items():
                self.tokens[name] = self.tokens.get(name, 0) + count
            for phase, value in cost.seconds.items():
                self.seconds[phase] = self.seconds.get(phase, 0.0) + value

    @property
    def signals(self) -> int:
        """Groups with a non-zero advantage."""
        return sum(has_signal(values) for values in self.advantages)

    @property
    def refills(self) -> int:
        """Groups of all rounds after the first."""
        return sum(self.round_sizes[1:])
