"""Seeded choices: which failed trajectories are intervened on, which of several successes is merged."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.intervention.case import Attempt, Case


def select(valid: Sequence[Case], max_per_group: int | None, *, group_size: int) -> list[Case]:
    """A random subset of a failed group's valid trajectories, in their order.

    At most `max_per_group`; None is half of the group, rounded down, and at least one valid failure is
    left as contrast.
    """
    most = min(group_size // 2, len(valid) - 1) if max_per_group is None else max_per_group
    drawn = sorted(valid, key=lambda case: case.draw("select"))[:most]
    return sorted(drawn, key=lambda case: case.trajectory.member)


def choose(winners: Sequence[Attempt]) -> Attempt:
    """One of several successful attempts on one case, drawn at random: never simply the first.

    A corrector's first success is often its laziest; taking it would favour leaks.
    """
    return min(winners, key=lambda winner: winner.case.draw("choose", winner.sample))
