"""Seeded selection of the failed trajectories of a group."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.intervention.case import Case


def select(valid: Sequence[Case], max_per_group: int | None, *, group_size: int) -> list[Case]:
    """A random subset of a failed group's valid trajectories, in their order.

    At most `max_per_group`. None means half of the group, rounded down, with at least one valid failure left as
    contrast.
    """
    most = min(group_size // 2, len(valid) - 1) if max_per_group is None else max_per_group
    drawn = sorted(valid, key=lambda case: case.draw("select"))[:most]
    return sorted(drawn, key=lambda case: case.trajectory.member)
