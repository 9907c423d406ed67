"""Outcomes of continued attempts, and where accepted children go."""

import dataclasses
from collections import Counter

import pytest

from rti_exp.config.settings import Merge
from rti_exp.intervention.case import Continued, Ended
from rti_exp.intervention.merge import choose, merge_group, settle
from rti_exp.types import Fork, Outcome, Trajectory
from tests.support.attempts import case_of, continued_attempt, harmful_step
from tests.support.fakes import GuessWorld, right_texts
from tests.support.interventions import broken, episode, failed_group

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
GROUP = failed_group(WORLD, TASK, 4)


def child_of(parent: int, reward: float = 1.0) -> Trajectory:
    fork = Fork(parent=parent, step=0, intervention_id=f"{parent}")
    return dataclasses.replace(episode(WORLD, TASK, parent, right_texts(TASK)), reward=reward, fork=fork)


def an_attempt(parent: int, child: Trajectory, *, sample: int = 0, shadow: bool = False) -> Continued:
    return continued_attempt(harmful_step(case_of(GROUP.sampled[parent], TASK), sample=sample), child, shadow=shadow)


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
    [ended] = settle([an_attempt(0, child_of(0, reward))], threshold)
    assert ended.outcome is outcome


def test_broken_continuation_failed():
    [ended] = settle([an_attempt(0, broken(TASK, 0))], 1.0)
    assert (ended.outcome, ended.error) == (Outcome.CONTINUATION_FAILED, "x")


def test_a_shadow_never_succeeds():
    [ended] = settle([an_attempt(0, child_of(0), shadow=True)], 1.0)
    assert (ended.outcome, ended.shadow) == (Outcome.TOO_PERPLEXING, True)


def test_one_winner_for_each_parent():
    attempts = [an_attempt(parent, child_of(parent), sample=sample) for parent in (0, 2) for sample in range(3)]
    ended = settle(attempts, 1.0)
    for parent in (0, 2):
        outcomes = [one.outcome for one in ended if one.case.trajectory.member == parent]
        assert sorted(str(outcome) for outcome in outcomes) == ["accepted", "not_chosen", "not_chosen"]


def test_replace_takes_the_parents_place():
    leaked = Ended(reached=an_attempt(3, child_of(3)).scored.corrected, outcome=Outcome.LEAKED)
    attempts = [*settle([an_attempt(2, child_of(2))], 1.0), leaked]
    result = merge_group(GROUP, attempts, Merge.replace)
    assert result.sampled == GROUP.sampled
    assert result.trajectories == (GROUP.sampled[0], GROUP.sampled[1], child_of(2), GROUP.sampled[3])
    assert [record.outcome for record in result.interventions] == [Outcome.ACCEPTED, Outcome.LEAKED]


def test_append_numbers_on_from_the_last_member():
    attempts = settle([an_attempt(parent, child_of(parent)) for parent in (1, 3)], 1.0)
    result = merge_group(GROUP, attempts, Merge.append)
    children = tuple(dataclasses.replace(child_of(parent), member=member) for parent, member in ((1, 4), (3, 5)))
    assert result.trajectories == (*GROUP.sampled, *children)
    assert tuple(record.child for record in result.interventions) == children


def test_only_accepted_children_are_merged():
    dropped = [outcome for outcome in Outcome if outcome is not Outcome.ACCEPTED]
    attempts = [Ended(reached=an_attempt(0, child_of(0)), outcome=outcome) for outcome in dropped]
    assert merge_group(GROUP, attempts, Merge.replace).trajectories == GROUP.sampled
    assert merge_group(GROUP, attempts, Merge.append).trajectories == GROUP.sampled


def test_choose_is_a_fair_draw_that_does_not_depend_on_the_order():
    counts: Counter[int] = Counter()
    for iteration in range(300):
        case = case_of(GROUP.sampled[0], TASK, iteration=iteration)
        successes = [continued_attempt(harmful_step(case, sample=sample), child_of(0)) for sample in range(3)]
        chosen = choose(successes)
        assert choose(successes[::-1]) is chosen
        counts[chosen.sample] += 1
    assert min(counts.values()) > 75
