"""Rolling out the groups of an iteration: the policy's members, then a teacher's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rti_exp.engines.base import Engine
from rti_exp.training.iteration import CollectedGroups
from rti_exp.training.tasks import IterationTasks
from rti_exp.types import Group, Task


class GroupCollector(Protocol):
    """Rolls out groups of a task; `rti_exp.rollout.collector.Collector`."""

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        iteration: int,
        *,
        purpose: str = "rollout",
        temperature: float | None = None,
    ) -> list[Group]: ...


class TeacherMembers(Protocol):
    """Adds `members` trajectories to each group; `rti_exp.rollout.teacher_rollouts.TeacherRollouts`."""

    members: int

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """Groups as sampled, and their cost on this rank."""

    groups: list[Group]
    tokens: Mapping[str, int]
    seconds: Mapping[str, float]


class GroupRollouts:
    """Rolls out groups of `group_size` members.

    Args:
        collector: The policy's; evaluation uses it too.
        engine: The policy's.
        group_size: Members of a group, a teacher's included.
        teacher: Adds members to each group (LUFFY); None for groups of the policy alone.
        teacher_engine: The teacher's, to count its tokens.
    """

    def __init__(
        self,
        *,
        collector: GroupCollector,
        engine: Engine,
        group_size: int,
        teacher: TeacherMembers | None = None,
        teacher_engine: Engine | None = None,
    ) -> None:
        self.collector = collector
        self.engine = engine
        self.group_size = group_size
        self.teacher = teacher
        self.teacher_engine = teacher_engine

    def __call__(self, tasks: Sequence[Task], iteration: int) -> RolledOut:
        """
        Raises:
            EngineUnavailable: the policy's or the teacher's engine stayed down.
        """
        start, (generated, scored) = time.perf_counter(), self._token_counts()
        policy_members = self.group_size - (self.teacher.members if self.teacher is not None else 0)
        groups = self.collector.collect(tasks, policy_members, iteration)
        if self.teacher is not None:
            groups = self.teacher(groups, iteration)
        generated_after, scored_after = self._token_counts()
        return RolledOut(
            groups=groups,
            tokens={"generated": generated_after - generated, "scored": scored_after - scored},
            seconds={"rollout": time.perf_counter() - start},
        )

    def _token_counts(self) -> tuple[int, int]:
        engines = {id(engine): engine for engine in (self.engine, self.teacher_engine) if engine is not None}
        return (
            sum(engine.generated_tokens for engine in engines.values()),
            sum(engine.scored_tokens for engine in engines.values()),
        )


def task_rounds(
    tasks: IterationTasks, collected: CollectedGroups, refill_rounds: int, *, rank: int, world_size: int
) -> Iterator[Sequence[Task]]:
    """This rank's tasks, round by round; the caller adds each round's groups to `collected`.

    The first round is the iteration's tasks. With `refill_rounds` (dynamic sampling, Yu et al. 2025, arXiv
    2503.14476) each further round draws as many fresh tasks as groups with signal are missing, until none is
    missing or no task is left. The tasks drawn are a function of seed, iteration and the number drawn before.
    """
    yield tasks.tasks
    required, drawn = len(collected.groups), 0
    for _ in range(refill_rounds):
        missing = required - collected.signals
        refills = tasks.fresh()[drawn : drawn + missing] if missing else ()
        if not refills:
            return
        drawn += len(refills)
        yield refills[rank::world_size]
