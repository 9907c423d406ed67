"""Outcomes of continued attempts, and where accepted children go."""

import dataclasses

import pytest

from rti_exp.config.settings import Merge
from rti_exp.intervention.case import Attempt, Case
from rti_exp.intervention.merge import merged, settle
from rti_exp.types import Evidence, Fork, Outcome, Trajectory, Verdict
from tests.support.fakes import GuessWorld, right_texts
from tests.support.interventions import broken, episode, failed_group

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
GROUP = failed_group(WORLD, TASK, 4)


def child_of(parent: int, reward: float = 1.0) -> Trajectory:
    fork = Fork(parent=parent, step=0, intervention_id=f"{parent}")
    return dataclasses.replace(episode(WORLD, TASK, parent, right_texts(TASK)), reward=reward, fork=fork)


def an_attempt(parent: int, child: Trajectory | None, *, sample: int = 0, outcome: Outcome | None = None) -> Attempt:
    case = Case(
        group=0,
        occurrence=0,
        task=TASK,
        trajectory=GROUP.sampled[parent],
        evidence=Evidence(level="none"),
        seed=0,
        iteration=0,
    )
    verdict = Verdict(kind="harmful", step=0)
    return Attempt(case=case, sample=sample, verdict=verdict, child=child, outcome=outcome)


@pytest.mark.parametrize(
    ("reward", "threshold", "outcome"),
    [
        (1.0, 1.0, Outcome.ACCEPTED),
        (0.999, 1.0, Outcome.STILL_FAILED),
        (0.5, 0.5, Outcome.ACCEPTED),
        (-1.0, -2.0, Outcome.ACCEPTED),
    ],
)
def test_success_is_at_least_the_threshold(reward, threshold, outcome):
    attempt = an_attempt(0, child_of(0, reward))
    settle([attempt], threshold)
    assert attempt.outcome is outcome


def test_broken_continuation_failed():
    attempt = an_attempt(0, broken(TASK, 0))
    attempt.error = "x"
    settle([attempt], 1.0)
    assert (attempt.outcome, attempt.error) == (Outcome.CONTINUATION_FAILED, "x")


def test_attempts_with_an_outcome_keep_it():
    shadow = an_attempt(0, child_of(0), outcome=Outcome.TOO_PERPLEXING)
    settle([shadow], 1.0)
    assert shadow.outcome is Outcome.TOO_PERPLEXING


def test_one_winner_for_each_parent():
    attempts = [an_attempt(parent, child_of(parent), sample=sample) for parent in (0, 2) for sample in range(3)]
    settle(attempts, 1.0)
    for parent in (0, 2):
        outcomes = [one.outcome for one in attempts if one.case.trajectory.member == parent]
        assert sorted(str(outcome) for outcome in outcomes) == ["accepted", "not_chosen", "not_chosen"]


def test_replace_takes_the_parents_place():
    attempts = [an_attempt(2, child_of(2), outcome=Outcome.ACCEPTED), an_attempt(3, None, outcome=Outcome.LEAKED)]
    result = merged(GROUP, attempts, Merge.replace)
    assert result.sampled == GROUP.sampled
    assert result.trajectories == (GROUP.sampled[0], GROUP.sampled[1], child_of(2), GROUP.sampled[3])
    assert [record.outcome for record in result.interventions] == [Outcome.ACCEPTED, Outcome.LEAKED]


def test_append_numbers_on_from_the_last_member():
    attempts = [an_attempt(parent, child_of(parent), outcome=Outcome.ACCEPTED) for parent in (1, 3)]
    result = merged(GROUP, attempts, Merge.append)
    children = tuple(dataclasses.replace(child_of(parent), member=member) for parent, member in ((1, 4), (3, 5)))
    assert result.trajectories == (*GROUP.sampled, *children)
    assert tuple(record.child for record in result.interventions) == children


def test_only_accepted_children_are_merged():
    dropped = [outcome for outcome in Outcome if outcome is not Outcome.ACCEPTED]
    attempts = [an_attempt(0, child_of(0), outcome=outcome) for outcome in dropped]
    assert merged(GROUP, attempts, Merge.replace).trajectories == GROUP.sampled
    assert merged(GROUP, attempts, Merge.append).trajectories == GROUP.sampled


def test_an_attempt_without_outcome_is_no_record():
    with pytest.raises(ValueError, match="attempt 0-box_0-1-0 has no outcome"):
        merged(GROUP, [an_attempt(1, None)], Merge.replace)
