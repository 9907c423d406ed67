"""Members of a group that a teacher rolled out, whole or for their first turns (LUFFY)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rti_exp.envs.base import InfrastructureError
from rti_exp.rollout.collect import Collector
from rti_exp.rollout.episode import EpisodeRun, broken_trajectory, environment_call
from rti_exp.types import Group, Task, Trajectory


class TeacherRollouts:
    """Adds `members` trajectories to each group.

    The teacher takes part in the same environment and is scored by the same reward. Of its K turns the first
    ceil(prefix_fraction * K) are kept; from there the policy goes on, in an episode that is brought to the same
    state by replay. All groups go through the teacher in one batch, and then through the policy in one.

    Args:
        teacher: A collector with the teacher's engine and author, in the policy's ids.
        policy: The policy's own.
        members: Trajectories for each group, >= 1.
        prefix_fraction: In (0, 1].
    """

    def __init__(self, *, teacher: Collector, policy: Collector, members: int, prefix_fraction: float) -> None:
        self.teacher = teacher
        self.policy = policy
        self.members = members
        self.prefix_fraction = prefix_fraction

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]:
        """The groups with the teacher's members at their end, under the next member numbers.

        Raises:
            EngineUnavailable: the teacher's or the policy's engine stayed down.
        """
        taught = self.teacher.collect([group.task for group in groups], self.members, iteration, purpose="teacher")
        added = [
            [dataclasses.replace(one, member=_next_member(group) + one.member) for one in teachers.sampled]
            for group, teachers in zip(groups, taught, strict=True)
        ]
        added = self._continued([group.task for group in groups], added, iteration)
        return [
            dataclasses.replace(group, sampled=(*group.sampled, *members), trajectories=(*group.trajectories, *members))
            for group, members in zip(groups, added, strict=True)
        ]

    def _continued(
        self, tasks: Sequence[Task], groups: Sequence[Sequence[Trajectory]], iteration: int
    ) -> list[list[Trajectory]]:
        """Each trajectory cut off after the teacher's share and continued by the policy; whole ones as they are."""
        placed = [[self._resumed(task, one) for one in group] for task, group in zip(tasks, groups, strict=True)]
        runs = [one for group in placed for one in group if isinstance(one, EpisodeRun)]
        finished = iter(self.policy.run(runs, iteration=iteration, purpose="after teacher"))
        return [[next(finished) if isinstance(one, EpisodeRun) else one for one in group] for group in placed]

    def _resumed(self, task: Task, trajectory: Trajectory) -> EpisodeRun | Trajectory:
        kept = math.ceil(self.prefix_fraction * len(trajectory.turns))
        if kept == len(trajectory.turns) or not trajectory.valid:
            return trajectory
        turns = trajectory.turns[:kept]
        try:
            start = environment_call(self.policy.environment.start, task)
            episode = environment_call(start.fork, [turn.message for turn in turns])
            found, wanted = environment_call(episode.state_hash), trajectory.turns[kept].state_hash
            if found != wanted:
                raise InfrastructureError(f"replay of the teacher's turns led to state {found} instead of {wanted}")
        except InfrastructureError as error:
            return broken_trajectory(task, trajectory.member, error, turns=turns)
        return EpisodeRun.resume(
            task,
            trajectory.member,
            episode,
            turns,
            self.policy.renderer,
            max_turns=self.policy.environment.max_turns,
            settings=self.policy.settings,
        )


def _next_member(group: Group) -> int:
    return 1 + max((trajectory.member for trajectory in group.sampled), default=-1)
