"""Merging successful continuations into their group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rti_exp.config.settings import Merge
from rti_exp.intervention.case import Continued, Ended, intervention_record
from rti_exp.types import Group, Outcome, Status, Trajectory


def settle(continued: Sequence[Continued], success_threshold: float) -> list[Ended]:
    """The outcome of every continued attempt. If several corrections of a case succeed, a seeded draw chooses one.

    A shadow stays too perplexing, whatever its reward.
    """
    ended: list[Ended] = []
    successes: dict[tuple[int, int], list[Continued]] = {}
    for attempt in continued:
        child = attempt.child
        if attempt.shadow:
            ended.append(Ended(reached=attempt, outcome=Outcome.TOO_PERPLEXING, error=child.error, shadow=True))
        elif not child.valid:
            ended.append(Ended(reached=attempt, outcome=Outcome.CONTINUATION_FAILED, error=child.error))
        elif child.status is not Status.OK or child.reward < success_threshold:
            ended.append(Ended(reached=attempt, outcome=Outcome.STILL_FAILED, error=child.error))
        else:
            successes.setdefault((attempt.case.group, attempt.case.trajectory.member), []).append(attempt)
    for candidates in successes.values():
        accepted = choose(candidates)
        ended += [
            Ended(reached=attempt, outcome=Outcome.ACCEPTED if attempt is accepted else Outcome.NOT_CHOSEN)
            for attempt in candidates
        ]
    return ended


def choose(successes: Sequence[Continued]) -> Continued:
    """One of several successful attempts on one case, drawn at random.

    A corrector's first success is often its laziest; always taking it would favour leaks.
    """
    return min(successes, key=lambda attempt: attempt.case.draw("choose", attempt.sample))


def merge_group(group: Group, attempts: Sequence[Ended], merge: Merge) -> Group:
    """The group with the records of its attempts, and with the accepted children among its trajectories.

    `replace`: a child takes its parent's place and member number. `append`: it joins at the end under a new number.
    `sampled` does not change.
    """
    trajectories = list(group.trajectories)
    records = []
    for attempt in attempts:
        if attempt.outcome is Outcome.ACCEPTED and isinstance(attempt.reached, Continued):
            child = _place(trajectories, attempt.reached.child, merge)
            attempt = dataclasses.replace(attempt, reached=dataclasses.replace(attempt.reached, child=child))
        records.append(intervention_record(attempt))
    return dataclasses.replace(group, trajectories=tuple(trajectories), interventions=(*group.interventions, *records))


def _place(trajectories: list[Trajectory], child: Trajectory, merge: Merge) -> Trajectory:
    members = [trajectory.member for trajectory in trajectories]
    if merge == Merge.append:
        child = dataclasses.replace(child, member=max(members) + 1)
        trajectories.append(child)
    else:
        trajectories[members.index(child.member)] = child
    return child
