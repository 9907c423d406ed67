"""Seeded choices: which failed trajectories are intervened on, which of several successes is merged."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.intervention.case import Attempt
from rti_exp.randomness import derive_seed
from rti_exp.types import Group, Trajectory


def select(group: Group, max_per_group: int | None, *, seed: int, iteration: int) -> list[Trajectory]:
    """A random subset of the valid trajectories of a group that failed, by member number.

    At most `max_per_group`; None is half of the group, rounded down, and at least one valid failure is
    left as contrast.
    """
    valid = [trajectory for trajectory in group.sampled if trajectory.valid]
    most = min(len(group.sampled) // 2, len(valid) - 1) if max_per_group is None else max_per_group
    drawn = sorted(valid, key=lambda one: derive_seed(seed, iteration, group.task.id, "select", one.member))
    return sorted(drawn[:most], key=lambda one: one.member)


def choose(winners: Sequence[Attempt]) -> Attempt:
    """One of several successful attempts on one case, drawn at random: never simply the first.

    A corrector's first success is often its laziest; taking it would favour leaks.
    """
    return min(winners, key=lambda winner: winner.case.draw("choose", winner.sample))
