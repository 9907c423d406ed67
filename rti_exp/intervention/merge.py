"""Putting successful continuations into their group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rti_exp.config.settings import Merge
from rti_exp.intervention.case import Attempt
from rti_exp.intervention.select import choose
from rti_exp.types import Group, Outcome, Status, Trajectory


def settle(attempts: Sequence[Attempt], success_threshold: float) -> None:
    """Gives every attempt that was continued its outcome; of one case's successes a seeded draw is accepted.

    Attempts that already have an outcome keep it (a shadow attempt never succeeds).
    """
    winners: dict[tuple[int, int], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.outcome is not None:
            continue
        if attempt.child is None or not attempt.child.valid:
            attempt.drop(Outcome.CONTINUATION_FAILED, attempt.error)
        elif attempt.child.status is not Status.OK or attempt.child.reward < success_threshold:
            attempt.drop(Outcome.STILL_FAILED, attempt.error)
        else:
            winners.setdefault((attempt.case.group, attempt.case.trajectory.member), []).append(attempt)
    for candidates in winners.values():
        accepted = choose(candidates)
        for candidate in candidates:
            candidate.drop(Outcome.ACCEPTED if candidate is accepted else Outcome.NOT_CHOSEN)


def merged(group: Group, attempts: Sequence[Attempt], merge: Merge) -> Group:
    """The group with the records of its attempts, and with the accepted children in its trajectories.

    `replace`: a child takes its parent's place and member number. `append`: it joins at the end, under a
    new number. `sampled` stays as it was.
    """
    trajectories = list(group.trajectories)
    records = []
    for attempt in attempts:
        if attempt.outcome is Outcome.ACCEPTED and attempt.child is not None:
            attempt.child = _placed(trajectories, attempt.child, merge)
        records.append(attempt.record())
    return dataclasses.replace(group, trajectories=tuple(trajectories), interventions=(*group.interventions, *records))


def _placed(trajectories: list[Trajectory], child: Trajectory, merge: Merge) -> Trajectory:
    members = [trajectory.member for trajectory in trajectories]
    if merge == Merge.append:
        child = dataclasses.replace(child, member=max(members) + 1)
        trajectories.append(child)
    else:
        trajectories[members.index(child.member)] = child
    return child
