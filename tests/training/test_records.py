"""What rollouts.jsonl says was trained is what was trained."""

import math
from dataclasses import replace

import pytest

from rti_exp.config.settings import Scope
from rti_exp.training.records import rollout_record
from rti_exp.training.samples import group_samples
from rti_exp.types import Author
from tests.support.trajectories import group, trajectory, turn

FIRST, SECOND = turn((1, 9), (7, 2)), turn((5,), (8, 2))
CORRECTED = turn((5,), (6, 3, 2), author=Author.CORRECTOR)
PARENT = trajectory((FIRST, SECOND), member=0)
OTHER = trajectory((FIRST,), member=1)
BROKEN = trajectory((FIRST,), member=2, reward=math.nan)
WEIGHTS = (1.25, 0.5, 1.0)


def masks(merged, advantages, scope=Scope.all, *, keep_zero_advantage=False) -> list[list[int]]:
    """Of the sampled trajectories, then of those that came in."""
    of = group((PARENT, OTHER, BROKEN), merged)
    samples = group_samples(of, advantages, scope, keep_zero_advantage=keep_zero_advantage)
    record = rollout_record(1, of, advantages, samples, lambda ids: " ".join(map(str, ids)))
    return [one["mask"] for one in record["trajectories"]]


def child(member: int):
    return trajectory((FIRST, CORRECTED), member=member, reward=1.0, fork=(0, 1), weights=WEIGHTS)


@pytest.mark.parametrize(
    ("scope", "expected"), [(Scope.all, [0, 0, 1, 1, 0, 1, 1, 1]), (Scope.turn, [0, 0, 0, 0, 0, 1, 1, 1])]
)
def test_scope_and_a_replaced_parent_and_a_broken_member(scope, expected) -> None:
    found = masks((child(0), OTHER, BROKEN), [0.7, -0.7, 0.0], scope)
    assert found == [[0] * 7, [0, 0, 1, 1], [0] * 4, expected]


def test_a_prefix_that_parent_and_child_share_is_trained_in_the_child() -> None:
    found = masks((PARENT, OTHER, BROKEN, child(3)), [-0.5, -0.5, 0.0, 1.0])
    assert found == [[0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 1], [0] * 4, [0, 0, 1, 1, 0, 1, 1, 1]]


def test_without_an_advantage_nothing_is_trained_but_by_a_kl_term() -> None:
    assert masks((PARENT, OTHER, BROKEN), [0.0, 0.0, 0.0]) == [[0] * 7, [0] * 4, [0] * 4]
    kept = masks((PARENT, OTHER, BROKEN), [0.0, 0.0, 0.0], keep_zero_advantage=True)
    assert kept == [[0, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1], [0] * 4]


def test_weights_in_the_record_are_those_of_training() -> None:
    sampled = replace(FIRST, importance_weights=(0.5, 2.0))
    taught = replace(turn((5,), (8, 2), author=Author.TEACHER), importance_weights=(9.0, 9.0))
    corrected = trajectory((sampled, CORRECTED), member=0, reward=1.0, fork=(0, 1), weights=WEIGHTS)
    other = trajectory((sampled, taught), member=1)
    of = group((PARENT, other), (corrected, other))
    samples = group_samples(of, [0.5, -0.5], Scope.all)
    record = rollout_record(1, of, [0.5, -0.5], samples, lambda ids: "")
    _, second, third = (one["weights"] for one in record["trajectories"])
    assert second == [1.0, 1.0, 0.5, 2.0, 1.0, 1.0, 1.0]
    assert third == [1.0, 1.0, 0.5, 2.0, 1.0, *WEIGHTS]
    assert [list(one.weights) for one in samples if one is not None] == [third, second]
