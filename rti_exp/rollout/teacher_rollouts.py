"""Group members that a teacher rolled out, completely or for their first turns (LUFFY)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rti_exp.envs.base import InfrastructureError
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.environment_calls import broken_trajectory, replayed_episode
from rti_exp.rollout.live_episode import LiveEpisode
from rti_exp.types import Group, Task, Trajectory


class TeacherRollouts:
    """Adds `members` trajectories to each group.

    The teacher plays in the same environment and is scored by the same reward. Of its K turns the first
    ceil(prefix_fraction * K) are kept. The policy continues from there, in an episode that replays those turns. All
    groups go through the teacher in one batch, and then through the policy in one.

    Args:
        teacher: A collector with the teacher's engine and author, in the policy's ids.
        policy: The policy's own collector.
        members: Trajectories for each group, >= 1.
        prefix_fraction: In (0, 1].
    """

    def __init__(self, *, teacher: Collector, policy: Collector, members: int, prefix_fraction: float) -> None:
        self.teacher = teacher
        self.policy = policy
        self.members = members
        self.prefix_fraction = prefix_fraction

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]:
        """The groups with the teacher's members at the end, under the next member numbers.

        Raises:
            EngineUnavailable: the teacher's or the policy's engine stayed down.
        """
        taught = self.teacher.collect([group.task for group in groups], self.members, iteration, purpose="teacher")
        members = [
            [
                self._shortened(group.task, dataclasses.replace(trajectory, member=_next_member(group) + number))
                for number, trajectory in enumerate(teachers.sampled)
            ]
            for group, teachers in zip(groups, taught, strict=True)
        ]
        live = [member for group in members for member in group if isinstance(member, LiveEpisode)]
        finished = iter(self.policy.run(live, iteration=iteration, purpose="after teacher"))
        extended = []
        for group, added in zip(groups, members, strict=True):
            trajectories = tuple(next(finished) if isinstance(member, LiveEpisode) else member for member in added)
            extended.append(
                dataclasses.replace(
                    group,
                    sampled=(*group.sampled, *trajectories),
                    trajectories=(*group.trajectories, *trajectories),
                )
            )
        return extended

    def _shortened(self, task: Task, trajectory: Trajectory) -> LiveEpisode | Trajectory:
        """A live episode after the teacher's share of the turns; the trajectory itself if that is all of them."""
        kept = math.ceil(self.prefix_fraction * len(trajectory.turns))
        if kept == len(trajectory.turns) or not trajectory.valid:
            return trajectory
        turns = trajectory.turns[:kept]
        try:
            episode = replayed_episode(self.policy.environment, task, turns, trajectory.turns[kept].state_hash)
            return LiveEpisode(task, trajectory.member, episode, self.policy.rules, turns=turns)
        except InfrastructureError as error:
            return broken_trajectory(task, trajectory.member, error, turns=turns)


def _next_member(group: Group) -> int:
    return 1 + max((trajectory.member for trajectory in group.sampled), default=-1)
