"""Properties of batches and merges over generated groups."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rti_exp.config.settings import Baseline, Merge, Scope
from rti_exp.intervention.case import Continued, Ended
from rti_exp.intervention.merge import merge_group, settle
from rti_exp.objective.advantages import group_advantages
from rti_exp.training.batch import micro_batches, mini_batches, trained_tokens
from rti_exp.training.samples import to_samples
from rti_exp.types import Author, Fork, Group, Outcome, Status, Trajectory
from tests.support.attempts import case_of, continued_attempt, harmful_step
from tests.support.trajectories import TASK, group, trajectory, turn

PROPERTY = settings(deadline=None, max_examples=150, derandomize=True)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """A group as merged: sampled members, some broken, and corrected ones in their parents' place or beside them."""
    members: list[Trajectory] = []
    token = st.integers(3, 30)
    ids = st.lists(token, min_size=1, max_size=4)

    def a_turn(author: Author = Author.POLICY) -> Any:
        return turn(draw(ids), draw(ids), author=author)

    for member in range(draw(st.integers(1, 5))):
        reward = draw(st.sampled_from([0.0, 1.0, 0.5, math.nan]))
        turns = [a_turn() for _ in range(draw(st.integers(0, 3)))]
        members.append(trajectory(turns, member=member, reward=reward))
    append = draw(st.booleans())
    merged_in = list(members)
    for parent in members:
        if parent.valid and parent.turns and draw(st.booleans()):
            step = draw(st.integers(0, len(parent.turns) - 1))
            corrected = replace(a_turn(Author.CORRECTOR), context_ids=parent.turns[step].context_ids)
            turns = [*parent.turns[:step], corrected, *(a_turn() for _ in range(draw(st.integers(0, 2))))]
            member = len(merged_in) if append else parent.member
            weights = [draw(st.floats(0.8, 1.2)) for _ in corrected.action_ids]
            child = trajectory(turns, member=member, reward=1.0, fork=(parent.member, step), weights=weights)
            if append:
                merged_in.append(child)
            else:
                merged_in[parent.member] = child
    return group(members, merged_in)


def advantages_of(one: Group) -> list[float]:
    rewards_G = torch.tensor([member.reward for member in one.trajectories], dtype=torch.float64)
    return group_advantages(rewards_G, baseline=Baseline.mean, normalize_std=True, eps=1e-6).tolist()


@PROPERTY
@given(groups(), st.sampled_from(Scope), st.booleans(), st.integers(1, 60))
def test_batches_hold_each_trained_token_once_and_within_the_budget(
    one: Group, scope: Scope, keep: bool, budget: int
) -> None:
    samples = to_samples(one, advantages_of(one), scope, keep_zero_advantage=keep)
    total = trained_tokens(samples)
    batches = micro_batches(samples, max_tokens=budget, total_trained_tokens=max(total, 1))
    assert sum(int(batch.loss_mask_BT.sum()) for batch in batches) == total
    assert sum(len(batch.lengths_B) for batch in batches) == len(samples)
    valid = {member.member for member in one.trajectories if member.valid}
    assert {sample.member for sample in samples} <= valid

    def streams(source: Any) -> Counter[tuple[float, ...]]:
        return Counter(source)

    wanted = streams(
        (token, round(log_prob, 5), round(weight, 5), round(sample.advantage, 5))
        for sample in samples
        for token, trained, log_prob, weight in zip(
            sample.token_ids, sample.loss_mask, sample.behaviour_log_probs, sample.weights, strict=True
        )
        if trained
    )
    found: Counter[tuple[float, ...]] = Counter()
    for batch in batches:
        assert batch.token_ids_BT.numel() <= budget or len(batch.lengths_B) == 1
        mask = batch.loss_mask_BT
        columns = (batch.token_ids_BT, batch.behaviour_log_probs_BT, batch.weights_BT, batch.advantages_BT)
        found += streams(
            zip(*([round(value, 5) for value in column[mask].tolist()] for column in columns), strict=True)
        )
        assert not batch.advantages_BT[~mask].any()
        assert not (mask & (batch.authors_BT == int(Author.ENVIRONMENT))).any()
        for name in ("behaviour_log_probs_BT", "advantages_BT", "weights_BT"):
            assert torch.isfinite(getattr(batch, name)).all()
    assert sum(wanted.values()) == sum(found.values()) == total
    assert Counter(key[0] for key in wanted.elements()) == Counter(key[0] for key in found.elements())


@PROPERTY
@given(groups(), st.sampled_from(Scope))
def test_a_step_that_parent_and_child_share_is_trained_once(one: Group, scope: Scope) -> None:
    samples = {sample.member: sample for sample in to_samples(one, advantages_of(one), scope, keep_zero_advantage=True)}
    trained: Counter[tuple[int, int]] = Counter()
    for member in one.trajectories:
        place = 0
        for step, taken in enumerate(member.turns):
            place += len(taken.context_ids)
            sample = samples.get(member.member)
            if sample is not None and sample.loss_mask[place]:
                own = member.fork is not None and step >= member.fork.step
                origin = member.member if member.fork is None or own else member.fork.parent
                trained[origin if not own else member.member + 1000, step] += 1
            place += len(taken.action_ids)
    assert all(count == 1 for count in trained.values())


@PROPERTY
@given(groups(), st.integers(1, 4), st.integers(0, 9))
def test_mini_batches_are_a_partition(one: Group, updates: int, seed: int) -> None:
    samples = to_samples(one, advantages_of(one), Scope.all, keep_zero_advantage=True)
    parts = mini_batches(samples, updates, seed, 3)
    assert len(parts) == updates
    assert sorted(map(id, (sample for part in parts for sample in part))) == sorted(map(id, samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@st.composite
def attempted(draw: st.DrawFn) -> tuple[Group, list[Continued], list[Ended]]:
    """A failed group, continued attempts on some of its members, and attempts that ended at earlier stages."""
    members = [trajectory([turn([1], [2]), turn([3], [4])], member=place) for place in range(draw(st.integers(1, 4)))]
    continued: list[Continued] = []
    ended: list[Ended] = []
    for parent in members:
        case = case_of(parent, TASK, iteration=1)
        for sample in range(draw(st.integers(0, 3))):
            harmful = harmful_step(case, 1, sample=sample)
            outcome = draw(st.sampled_from([None, None, None, Outcome.LEAKED, Outcome.TOO_PERPLEXING]))
            if outcome is Outcome.LEAKED:
                ended.append(Ended(reached=harmful, outcome=outcome))
                continue
            reward = draw(st.sampled_from([0.0, 0.999, 1.0, 7.0, math.nan]))
            child = trajectory([turn([1], [2]), turn([3], [9])], member=parent.member, reward=reward)
            status = draw(st.sampled_from([Status.OK, Status.TRUNCATED])) if child.valid else child.status
            fork = Fork(parent=parent.member, step=1, intervention_id=harmful.id)
            child = replace(child, status=status, fork=fork)
            continued.append(continued_attempt(harmful, child, shadow=outcome is not None))
    return group(members), continued, ended


@PROPERTY
@given(attempted(), st.sampled_from(Merge), st.sampled_from([0.5, 1.0]))
def test_a_merge_counts_every_attempt_and_takes_one_success_of_each_case(
    drawn: tuple[Group, list[Continued], list[Ended]], merge: Merge, threshold: float
) -> None:
    before, continued, ended = drawn
    attempts = [*ended, *settle(continued, threshold)]
    after = merge_group(before, attempts, merge)
    accepted = [record for record in after.interventions if record.outcome is Outcome.ACCEPTED]
    won = {
        attempt.case.trajectory.member
        for attempt in continued
        if not attempt.shadow and attempt.child.status is Status.OK and attempt.child.reward >= threshold
    }
    assert len(after.interventions) == len(attempts)
    assert sorted(one.parent for one in accepted) == sorted(won)
    assert after.sampled == before.sampled
    numbers = [member.member for member in after.trajectories]
    assert len(set(numbers)) == len(numbers)
    assert len(numbers) == len(before.sampled) + (len(won) if merge is Merge.append else 0)
    children = [member for member in after.trajectories if member.fork is not None]
    assert sorted(child.fork.parent for child in children if child.fork) == sorted(won)
    assert len(children) == len(accepted)
