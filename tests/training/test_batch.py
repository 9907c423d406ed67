from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rti_exp.config.settings import Scope
from rti_exp.training.batch import micro_batches, mini_batches, trained_tokens
from rti_exp.training.samples import to_samples
from rti_exp.types import Author, Sample
from tests.support.trajectories import group, trajectory, turn

ENVIRONMENT, POLICY, CORRECTOR = Author.ENVIRONMENT, Author.POLICY, Author.CORRECTOR
OPENING = turn([1, 9, 4], [7, 2], log_probs=[-0.1, -0.2])
STEP = turn([5, 4], [8, 2], log_probs=[-0.3, -0.4])
CORRECTION = turn([5, 4], [6, 6, 2], author=CORRECTOR, log_probs=[-1.0, -1.1, -1.2])
ENDING = turn([5], [3, 2], log_probs=[-0.5, -0.6])
PARENT = trajectory([OPENING, STEP, ENDING], member=0)
CHILD = trajectory([OPENING, CORRECTION, ENDING], member=0, reward=1.0, fork=(0, 1), weights=[1.2, 0.8, 1.0])
OTHER = trajectory([OPENING, STEP], member=1)


def mask(sample: Sample) -> list[int]:
    return [int(trained) for trained in sample.loss_mask]


def test_streams_of_a_sampled_trajectory() -> None:
    (sample,) = to_samples(group([OTHER]), [-0.5], Scope.all)
    assert sample.token_ids == (1, 9, 4, 7, 2, 5, 4, 8, 2)
    assert sample.authors == (ENVIRONMENT,) * 3 + (POLICY,) * 2 + (ENVIRONMENT,) * 2 + (POLICY,) * 2
    assert mask(sample) == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert sample.behaviour_log_probs == (0.0, 0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3, -0.4)
    assert sample.weights == (1.0,) * 9
    assert (sample.advantage, sample.task_id, sample.member) == (-0.5, "task", 1)


def test_importance_weights_are_those_of_the_policys_sampled_tokens() -> None:
    sampled = replace(OPENING, importance_weights=(0.5, 2.0))
    taught = replace(STEP, author=Author.TEACHER, importance_weights=(9.0, 9.0))
    child = replace(CHILD, turns=(sampled, replace(CORRECTION, importance_weights=(9.0, 9.0, 9.0)), ENDING))
    other = replace(OTHER, turns=(sampled, taught))
    first, second = to_samples(group([PARENT, other], [child, other]), [0.5, -0.5], Scope.all)
    assert first.weights == (1.0,) * 3 + (0.5, 2.0) + (1.0,) * 2 + (1.2, 0.8, 1.0) + (1.0,) * 3
    assert second.weights == (1.0,) * 3 + (0.5, 2.0) + (1.0,) * 4


@pytest.mark.parametrize(
    ("scope", "child_mask"),
    [
        (Scope.all, [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1]),
        (Scope.suffix, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1]),
        (Scope.turn, [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]),
    ],
)
def test_scope_restricts_the_corrected_trajectory_only(scope: Scope, child_mask: list[int]) -> None:
    child, other = to_samples(group([PARENT, OTHER], [CHILD, OTHER]), [0.5, -0.5], scope)
    assert child.token_ids == (1, 9, 4, 7, 2, 5, 4, 6, 6, 2, 5, 3, 2)
    assert child.authors[7:10] == (CORRECTOR,) * 3
    assert child.authors[11:] == (POLICY,) * 2
    assert mask(child) == child_mask
    assert child.weights == (1.0,) * 7 + (1.2, 0.8, 1.0) + (1.0,) * 3
    assert child.behaviour_log_probs[7:10] == (-1.0, -1.1, -1.2)
    assert mask(other) == [0, 0, 0, 1, 1, 0, 0, 1, 1]


def test_appended_child_keeps_the_shared_prefix_and_its_parent_loses_it() -> None:
    child = trajectory(CHILD.turns, member=2, reward=1.0, fork=(0, 1), weights=CHILD.correction_weights)
    parent, other, appended = to_samples(group([PARENT, OTHER], [PARENT, OTHER, child]), [-0.5, -0.5, 1.0], Scope.all)
    assert mask(parent) == [0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1]
    assert mask(other) == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert mask(appended) == [0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1]
    assert parent.behaviour_log_probs[3:5] == (0.0, 0.0)


def test_append_and_replace_train_the_same_tokens_of_the_child() -> None:
    appended = trajectory(CHILD.turns, member=2, reward=1.0, fork=(0, 1), weights=CHILD.correction_weights)
    for scope in Scope:
        (replacing,) = to_samples(group([PARENT], [CHILD]), [1.0], scope)
        _, joining = to_samples(group([PARENT], [PARENT, appended]), [-1.0, 1.0], scope)
        assert joining.loss_mask == replacing.loss_mask


def test_of_two_children_the_one_that_forked_last_trains_the_shared_prefix() -> None:
    late_turn = turn([5], [6, 2], author=CORRECTOR)
    early = trajectory([turn([1, 9, 4], [6, 2], author=CORRECTOR)], member=1, fork=(0, 0), weights=[1.0, 1.0])
    middle = trajectory(CHILD.turns, member=2, fork=(0, 1), weights=[1.0, 1.0, 1.0])
    late = trajectory([OPENING, STEP, late_turn], member=3, fork=(0, 2), weights=[1.0, 1.0])
    merged = group([PARENT], [PARENT, early, middle, late])
    masks = [mask(sample) for sample in to_samples(merged, [-1.0, 1.0, 1.0, 1.0], Scope.all)]
    assert masks[0] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert masks[1] == [0, 0, 0, 1, 1]
    assert masks[2] == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1]
    assert masks[3] == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1]


def test_zero_advantage_is_left_out_unless_kept() -> None:
    both = group([OTHER, trajectory([OPENING], member=2)])
    assert to_samples(both, [0.0, 0.0], Scope.all) == []
    assert [one.member for one in to_samples(both, [0.0, 0.5], Scope.all)] == [2]
    assert [one.member for one in to_samples(both, [0.0, 0.0], Scope.all, keep_zero_advantage=True)] == [1, 2]


def test_infrastructure_failures_are_never_trained() -> None:
    broken = trajectory([OPENING], member=2, reward=math.nan)
    assert to_samples(group([broken]), [0.0], Scope.all, keep_zero_advantage=True) == []


def test_trajectory_without_turns_is_left_out() -> None:
    assert to_samples(group([trajectory([])]), [1.0], Scope.all) == []


def test_count_of_advantages_must_fit() -> None:
    with pytest.raises(ValueError, match="2 advantages for 1 trajectories"):
        to_samples(group([OTHER]), [1.0, 1.0], Scope.all)


@pytest.mark.parametrize("weights", [(), (1.0,)])
def test_correction_without_its_weights_is_refused(weights: tuple[float, ...]) -> None:
    broken = trajectory(CHILD.turns, fork=(0, 1), weights=weights)
    with pytest.raises(ValueError, match="correction of 3 tokens"):
        to_samples(group([PARENT], [broken]), [1.0], Scope.all)


def sample(length: int, *, member: int, trained: int = 1) -> Sample:
    """The last `trained` tokens are trained; ids are 100 * member + position."""
    return Sample(
        token_ids=tuple(100 * member + position for position in range(length)),
        authors=(ENVIRONMENT,) * (length - trained) + (POLICY,) * trained,
        loss_mask=(False,) * (length - trained) + (True,) * trained,
        behaviour_log_probs=(0.0,) * (length - trained) + (-0.5,) * trained,
        weights=(1.0,) * (length - trained) + (1.5,) * trained,
        advantage=float(member),
        task_id="task",
        member=member,
    )


def test_trained_tokens() -> None:
    assert trained_tokens([sample(4, member=1, trained=3), sample(2, member=2)]) == 4


def test_micro_batches_are_sorted_by_length_padded_right_and_within_the_budget() -> None:
    samples = [sample(3, member=1), sample(5, member=2, trained=2), sample(2, member=3), sample(4, member=4)]
    first, second = micro_batches(samples, max_tokens=10, total_trained_tokens=77)
    assert first.token_ids_BT.tolist() == [[200, 201, 202, 203, 204], [400, 401, 402, 403, 0]]
    assert first.loss_mask_BT.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 0]]
    assert first.behaviour_log_probs_BT.tolist() == [[0, 0, 0, -0.5, -0.5], [0, 0, 0, -0.5, 0]]
    assert first.advantages_BT.tolist() == [[0, 0, 0, 2, 2], [0, 0, 0, 4, 0]]
    assert first.weights_BT.tolist() == [[1, 1, 1, 1.5, 1.5], [1, 1, 1, 1.5, 1]]
    assert first.lengths_B.tolist() == [5, 4]
    assert second.token_ids_BT.tolist() == [[100, 101, 102], [300, 301, 0]]
    assert first.total_trained_tokens == second.total_trained_tokens == 77
    assert first.loss_mask_BT.dtype is torch.bool


def test_tokens_after_the_last_trained_one_are_dropped() -> None:
    child, _ = to_samples(group([PARENT, OTHER], [CHILD, OTHER]), [0.5, -0.5], Scope.turn)
    (batch,) = micro_batches([child], max_tokens=100, total_trained_tokens=3)
    assert batch.token_ids_BT.tolist() == [[1, 9, 4, 7, 2, 5, 4, 6, 6, 2]]


def test_a_sample_over_the_budget_gets_a_batch_of_its_own() -> None:
    batches = micro_batches(
        [sample(9, member=1), sample(2, member=2), sample(2, member=3)], max_tokens=4, total_trained_tokens=1
    )
    assert [batch.lengths_B.tolist() for batch in batches] == [[9], [2, 2]]


def test_packed_batches_keep_a_task_together_and_count_no_padding() -> None:
    samples = [sample(3, member=1), sample(5, member=2), sample(2, member=3), sample(4, member=4)]
    samples = [replace(one, task_id=task) for one, task in zip(samples, "abab", strict=True)]
    first, second = micro_batches(samples, max_tokens=10, total_trained_tokens=1, packed=True)
    # Task a: 3 and 2 tokens, task b: 5 and 4; 3 + 2 + 5 is the budget.
    assert first.token_ids_BT[:, 0].tolist() == [100, 300, 200]
    assert second.token_ids_BT.tolist() == [[400, 401, 402, 403]]


@pytest.mark.parametrize("packed", [False, True])
def test_order_of_the_samples_does_not_matter(packed: bool) -> None:
    samples = [sample(3, member=member) for member in range(5)]
    forward = micro_batches(samples, max_tokens=6, total_trained_tokens=1, packed=packed)
    backward = micro_batches(samples[::-1], max_tokens=6, total_trained_tokens=1, packed=packed)
    assert [one.token_ids_BT.tolist() for one in forward] == [one.token_ids_BT.tolist() for one in backward]


def test_no_samples_no_batches() -> None:
    assert micro_batches([], max_tokens=4, total_trained_tokens=1) == []


def test_first_token_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="nothing predicts it"):
        micro_batches([sample(1, member=1)], max_tokens=4, total_trained_tokens=1)


def samples_of(task_id: str, count: int) -> list[Sample]:
    stream = (True,)
    return [
        Sample(
            token_ids=(1,),
            authors=(Author.POLICY,),
            loss_mask=stream,
            behaviour_log_probs=(0.0,),
            weights=(1.0,),
            advantage=1.0,
            task_id=task_id,
            member=member,
        )
        for member in range(count)
    ]


def test_mini_batches_are_a_balanced_partition_whatever_else_is_there() -> None:
    first, second = samples_of("first", 8), samples_of("second", 5)
    parts = mini_batches(first + second, 2, seed=0, iteration=1)
    places = sorted((one.task_id, one.member) for part in parts for one in part)
    assert places == sorted((one.task_id, one.member) for one in first + second)
    assert [sum(one.task_id == "first" for one in part) for part in parts] == [4, 4]
    assert sorted(sum(one.task_id == "second" for one in part) for part in parts) == [2, 3]
    alone = mini_batches(second, 2, seed=0, iteration=1)
    assert alone == [[one for one in part if one.task_id == "second"] for part in parts]
    assert mini_batches(first, 2, seed=0, iteration=2) != mini_batches(first, 2, seed=0, iteration=1)


def test_more_updates_than_samples() -> None:
    parts = mini_batches(samples_of("task", 2), 5, seed=0, iteration=1)
    assert sorted(len(part) for part in parts) == [0, 0, 0, 1, 1]
