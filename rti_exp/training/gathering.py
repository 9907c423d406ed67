"""The groups of an iteration: rolled out, joined by a teacher, intervened on, and refilled where they lack signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from rti_exp.config.group_settings import LimitSettings
from rti_exp.engines.base import Engine
from rti_exp.objective.algorithm import Algorithm
from rti_exp.training.distributed import rank, sum_over_ranks, world_size
from rti_exp.training.metrics import Stopwatch
from rti_exp.training.tasks import IterationTasks
from rti_exp.types import Group, Outcome, Task


class Rollouts(Protocol):
    """Rolls out groups; `rti_exp.rollout.collect.Collector`."""

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        iteration: int,
        *,
        purpose: str = "rollout",
        temperature: float | None = None,
    ) -> list[Group]: ...


class Intervening(Protocol):
    """`rti_exp.intervention.pipeline.Interventions`; `seconds` and `role_tokens` are of the last call."""

    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def role_tokens(self) -> Mapping[str, int]: ...
    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]: ...


class Teaching(Protocol):
    """Adds `members` trajectories to each group; `rti_exp.rollout.teacher.TeacherRollouts`."""

    members: int

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]: ...


@dataclass(kw_only=True)
class Gathered:
    """What one rank gathered: groups with their advantages, in the order of the tasks, and what they took.

    `refills` of the groups, the last ones, were rolled out in place of groups without signal.
    """

    groups: list[Group] = field(default_factory=list)
    advantages: list[list[float]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    refills: int = 0

    def signals(self) -> int:
        """How many groups have a non-zero advantage."""
        return sum(has_signal(values) for values in self.advantages)


def has_signal(advantages: Sequence[float]) -> bool:
    return any(value != 0 for value in advantages)


@dataclass(frozen=True, kw_only=True)
class Gatherer:
    """Gathers the groups of one iteration.

    With `refills` (dynamic sampling: Yu et al. 2025, arXiv 2503.14476) every group without signal is made up for
    by a fresh task, in rounds: each draws as many tasks as groups with signal are missing on all ranks together,
    until none is, `refills` rounds are done, or there are no more tasks. Which tasks come is a function of seed,
    iteration and the number drawn before.

    Args:
        interventions: None leaves all groups as they were sampled (plain GRPO).
        teacher: None for groups of the policy alone.
        engines: Those that roll out; each is counted once.
        group_size: Members of a group, a teacher's included.
        device: Of the counts that ranks exchange.
    """

    collector: Rollouts
    interventions: Intervening | None
    teacher: Teaching | None
    engines: Sequence[Engine]
    algorithm: Algorithm
    group_size: int
    refills: int
    device: torch.device
    stopwatch: Stopwatch

    def __call__(self, tasks: IterationTasks, iteration: int) -> Gathered:
        """This rank's groups. Every rank must call it.

        Raises:
            EngineUnavailable: the policy's or the teacher's engine stayed down.
        """
        gathered = Gathered()
        self._add(gathered, tasks.tasks, iteration)
        wanted, drawn = self._over_ranks(len(tasks)), 0
        for _ in range(self.refills):
            missing = wanted - self._over_ranks(gathered.signals())
            more = tasks.fresh()[drawn : drawn + missing] if missing else ()
            if not more:
                break
            drawn += len(more)
            own = more[rank() :: world_size()]
            gathered.refills += len(own)
            self._add(gathered, own, iteration)
        return gathered

    def _add(self, gathered: Gathered, tasks: Sequence[Task], iteration: int) -> None:
        if not tasks:
            return
        groups = self._rolled_out(gathered, tasks, iteration)
        if self.interventions is not None:
            groups = self._intervened(gathered, groups, iteration, self.interventions)
        gathered.groups += groups
        gathered.advantages += [self.algorithm.advantages(group) for group in groups]

    def _rolled_out(self, gathered: Gathered, tasks: Sequence[Task], iteration: int) -> list[Group]:
        generated, scored = self._count()
        own = self.group_size - (self.teacher.members if self.teacher is not None else 0)
        with self.stopwatch.time("rollout"):
            groups = self.collector.collect(tasks, own, iteration)
            if self.teacher is not None:
                groups = self.teacher(groups, iteration)
        generated_now, scored_now = self._count()
        _add_up(gathered.tokens, {"generated": generated_now - generated, "scored": scored_now - scored})
        return groups

    def _intervened(
        self, gathered: Gathered, groups: Sequence[Group], iteration: int, interventions: Intervening
    ) -> list[Group]:
        merged = interventions(groups, iteration)
        for phase, seconds in interventions.seconds.items():
            phase = "rollout" if phase == "continue" else phase
            self.stopwatch.seconds[phase] = self.stopwatch.seconds.get(phase, 0.0) + seconds
        spent = interventions.role_tokens
        _add_up(
            gathered.tokens,
            {
                "generated": spent["continued"],
                "role_generated": spent["generated"],
                "role_scored": spent["scored"],
            },
        )
        return merged

    def _count(self) -> tuple[int, int]:
        engines = {id(engine): engine for engine in self.engines}.values()
        return sum(engine.generated_tokens for engine in engines), sum(engine.scored_tokens for engine in engines)

    def _over_ranks(self, value: int) -> int:
        return int(sum_over_ranks(torch.tensor(value, device=self.device)).item())


def _add_up(totals: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count


class EnvironmentDownError(RuntimeError):
    """Too few rollouts were valid: the environment is broken, and what is left is no fair sample."""


class RolesDownError(RuntimeError):
    """Too few attempts had a usable answer of each role: the method is not what it is called."""


USELESS = (Outcome.NO_VERDICT, Outcome.NO_CORRECTION, Outcome.NO_CHECK, Outcome.ROLE_FAILED)
"""Outcomes of roles that answered prose or nothing, or raised; not of an engine that is down."""
FEW_ATTEMPTS = 20
"""A share of fewer attempts than these says too little to end a run, unless a role raises for all of them."""


def require_valid(groups: Sequence[Group], when: str, limits: LimitSettings) -> None:
    """
    Args:
        when: For the message, as in "iteration 3".

    Raises:
        EnvironmentDownError: every rollout is an infrastructure failure, or more than `limits.env_failures` of them.
    """
    sampled = [trajectory for group in groups for trajectory in group.sampled]
    broken = [trajectory for trajectory in sampled if not trajectory.valid]
    if broken and (len(broken) == len(sampled) or len(broken) > limits.env_failures * len(sampled)):
        raise EnvironmentDownError(
            f"{when}: {len(broken)} of {len(sampled)} rollouts are infrastructure failures, "
            f"limits.env_failures is {limits.env_failures:g}; the first: {broken[0].error}"
        )


def require_usable_roles(groups: Sequence[Group], when: str, limits: LimitSettings) -> None:
    """
    Raises:
        RolesDownError: more than `limits.role_failures` of the attempts, if they are enough, have such an outcome.
    """
    attempts = [one for group in groups for one in group.interventions if one.outcome is not Outcome.ROLE_UNAVAILABLE]
    useless = Counter(one.outcome for one in attempts if one.outcome in USELESS)
    enough = len(attempts) >= FEW_ATTEMPTS or useless[Outcome.ROLE_FAILED] == len(attempts)
    if enough and useless.total() > limits.role_failures * len(attempts):
        counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(useless.items()))
        example = next((one.error for one in attempts if one.outcome in USELESS and one.error), None)
        raise RolesDownError(
            f"{when}: {useless.total()} of {len(attempts)} attempts have no usable answer of a role ({counted}), "
            f"limits.role_failures is {limits.role_failures:g}" + (f"; the first error: {example}" if example else "")
        )
