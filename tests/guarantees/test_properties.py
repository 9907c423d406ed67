"""Objective, gate, merge and batches over all inputs that can come, drawn by hypothesis: finite, counted, right."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rti_exp.config.settings import Baseline, GateSettings, Merge, Scope
from rti_exp.intervention.case import Continued, Ended
from rti_exp.intervention.gate import PerplexityGate, perplexity
from rti_exp.intervention.merge import merge_group, settle
from rti_exp.objective.advantages import advantages_from_members, group_advantages
from rti_exp.objective.losses import kl_penalty, policy_loss, shaped_loss
from rti_exp.objective.passk import pass_at_k, pass_hat_k
from rti_exp.objective.weights import correction_weights
from rti_exp.training.batch import micro_batches, mini_batches, trained_tokens
from rti_exp.training.samples import to_samples
from rti_exp.types import Author, Fork, Group, Outcome, Status, Trajectory
from tests.support.interventions import case_of, continued_attempt, harmful_step
from tests.support.trajectories import TASK, group, trajectory, turn

PROPERTY = settings(deadline=None, max_examples=150, derandomize=True)

REWARDS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5]), st.floats(1e-3, 1e9), st.floats(-1e9, -1e-3))
MEMBERS = st.lists(st.one_of(REWARDS, st.just(math.nan)), min_size=0, max_size=12)
LOG_PROBS = st.one_of(st.floats(-1e4, 0.0), st.sampled_from([0.0, -1e-12, -745.2, -1e4]))
POSSIBLE_LOG_PROBS = st.one_of(LOG_PROBS, st.just(-math.inf))


# -- advantages -------------------------------------------------------------------------------------------


def is_open(delta: float, log_probs: Sequence[float]) -> bool:
    return PerplexityGate(GateSettings(delta=delta)).passes(log_probs)


@PROPERTY
@given(MEMBERS, st.sampled_from(Baseline), st.booleans())
def test_advantages_are_finite_centred_and_in_the_order_of_the_rewards(
    rewards: list[float], baseline: Baseline, normalize_std: bool
) -> None:
    rewards_G = torch.tensor(rewards, dtype=torch.float64)
    found = group_advantages(rewards_G, baseline=baseline, normalize_std=normalize_std, eps=1e-6).tolist()
    valid = [(reward, value) for reward, value in zip(rewards, found, strict=True) if not math.isnan(reward)]
    assert all(math.isfinite(value) for value in found)
    assert all(value == 0 for reward, value in zip(rewards, found, strict=True) if math.isnan(reward))
    largest = max((abs(value) for value in found), default=0.0)
    scale = largest if normalize_std else max((abs(reward) for reward, _ in valid), default=0.0)
    assert abs(math.fsum(value for _, value in valid)) <= 1e-6 * max(scale, 1e-3)
    if len({reward for reward, _ in valid}) < 2:
        assert largest == 0.0
    ordered = sorted(valid)
    assert all(low[1] <= high[1] for low, high in itertools.pairwise(ordered))


@PROPERTY
@given(MEMBERS, st.randoms(use_true_random=False))
def test_advantages_do_not_depend_on_the_order_of_the_group(rewards: list[float], rng: Any) -> None:
    places = list(range(len(rewards)))
    rng.shuffle(places)

    def of(values: Sequence[float]) -> list[float]:
        tensor_G = torch.tensor(values, dtype=torch.float64)
        return group_advantages(tensor_G, baseline=Baseline.mean, normalize_std=True, eps=1e-6).tolist()

    straight, shuffled = of(rewards), of([rewards[place] for place in places])
    for place, value in zip(places, shuffled, strict=True):
        assert math.isclose(value, straight[place], rel_tol=1e-6, abs_tol=1e-9)


@PROPERTY
@given(MEMBERS, st.lists(st.booleans(), min_size=12, max_size=12))
def test_advantages_from_some_members_are_finite(rewards: list[float], chosen: list[bool]) -> None:
    rewards_G, baseline_G = torch.tensor(rewards, dtype=torch.float64), torch.tensor(chosen[: len(rewards)]).bool()
    found = advantages_from_members(rewards_G, baseline_G).tolist()
    assert all(math.isfinite(value) for value in found)
    of_baseline = [value for value, there in zip(rewards, chosen, strict=False) if there and not math.isnan(value)]
    if not of_baseline:
        assert not any(found)


@PROPERTY
@given(st.integers(1, 40), st.data())
def test_pass_at_k_is_a_probability_that_grows_with_k(samples: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, samples))
    values = [pass_at_k(samples, successes, k) for k in range(1, samples + 1)]
    all_of_k = [pass_hat_k(samples, successes, k) for k in range(1, samples + 1)]
    assert values[0] == all_of_k[0] or math.isclose(values[0], successes / samples)
    assert all(0 <= one <= 1 for one in [*values, *all_of_k])
    assert values == sorted(values)
    assert all_of_k == sorted(all_of_k, reverse=True)
    assert values[-1] == float(successes > 0)


# -- the gate and the weights -----------------------------------------------------------------------------


@PROPERTY
@given(st.lists(POSSIBLE_LOG_PROBS, min_size=1, max_size=30), st.floats(0.0, math.inf), st.floats(0.0, math.inf))
def test_a_wider_gate_lets_no_less_through(log_probs: list[float], first: float, second: float) -> None:
    narrow, wide = sorted((first, second))
    assert not (is_open(narrow, log_probs) and not is_open(wide, log_probs))
    assert is_open(math.inf, log_probs)
    assert not is_open(math.nextafter(1.0, 0.0), log_probs)
    value = perplexity(log_probs)
    assert value >= 1.0
    if math.isfinite(value) and value < 1e300:
        assert is_open(value * (1 + 1e-9), log_probs)
        assert value <= 1 + 1e-9 or not is_open(value * (1 - 1e-9), log_probs)


@PROPERTY
@given(st.lists(st.tuples(POSSIBLE_LOG_PROBS, POSSIBLE_LOG_PROBS), min_size=0, max_size=30), st.floats(0.0, 1.0))
def test_weights_are_within_their_range_and_boost_what_the_correction_prompt_makes_likelier(
    pairs: list[tuple[float, float]], eps_cal: float
) -> None:
    calibration_T = torch.tensor([pair[0] for pair in pairs], dtype=torch.float64)
    rollout_T = torch.tensor([pair[1] for pair in pairs], dtype=torch.float64)
    for (calibration, rollout), weight in zip(
        pairs, correction_weights(calibration_T, rollout_T, eps_cal).tolist(), strict=True
    ):
        assert 1 - eps_cal <= weight <= 1 + eps_cal
        assert (calibration >= rollout and weight >= 1) or (calibration <= rollout and weight <= 1)
        if calibration == rollout:
            assert weight == 1.0


# -- the loss ---------------------------------------------------------------------------------------------


@st.composite
def token_streams(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """[B, T] streams with anything where nothing is trained, and extreme values where something is."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    count = rows * columns
    mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    anything = st.sampled_from([math.nan, -math.inf, math.inf, 0.0])

    def stream(values: st.SearchStrategy[float], *, wild: bool) -> torch.Tensor:
        drawn = [draw(values if trained or not wild else anything) for trained in mask]
        return torch.tensor(drawn, dtype=torch.float64).reshape(rows, columns)

    return {
        "log_probs_BT": stream(POSSIBLE_LOG_PROBS, wild=True),
        "behaviour_log_probs_BT": stream(LOG_PROBS, wild=True),
        "advantages_BT": stream(st.floats(-100, 100), wild=False),
        "weights_BT": stream(st.floats(0, 2), wild=False),
        "loss_mask_BT": torch.tensor(mask).reshape(rows, columns),
    }


def by_hand(streams: dict[str, torch.Tensor], low: float, high: float) -> float:
    total = 0.0
    for new, old, advantage, weight, trained in zip(
        *(value.flatten().tolist() for value in streams.values()), strict=True
    ):
        if trained:
            ratio = math.exp(max(-20.0, min(20.0, new - old)))
            total -= weight * min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
    return total


@PROPERTY
@given(token_streams(), st.floats(0.0, 1.0), st.one_of(st.floats(0.0, 5.0), st.just(math.inf)))
def test_the_policy_loss_is_the_sum_by_hand_with_a_finite_gradient(
    streams: dict[str, torch.Tensor], low: float, high: float
) -> None:
    total = max(1, int(streams["loss_mask_BT"].sum()))
    log_probs_BT = streams["log_probs_BT"].clone().requires_grad_()
    loss, stats = policy_loss(
        log_probs_BT, *list(streams.values())[1:], clip_low=low, clip_high=high, total_tokens=total
    )
    loss.backward()
    gradient_BT = log_probs_BT.grad
    assert gradient_BT is not None
    assert math.isfinite(loss.item())
    assert math.isclose(loss.item(), by_hand(streams, low, high) / total, rel_tol=1e-9, abs_tol=1e-9)
    assert torch.isfinite(gradient_BT).all()
    assert not gradient_BT[~streams["loss_mask_BT"]].any()
    assert 0 <= stats.clip_share.item() <= 1
    assert math.isfinite(stats.ratio_max.item())


@PROPERTY
@given(token_streams(), st.integers(0, 3))
def test_the_loss_of_rows_apart_is_the_loss_of_all(streams: dict[str, torch.Tensor], cut: int) -> None:
    def loss(rows: slice) -> float:
        parts = {name: value[rows] for name, value in streams.items()}
        if not len(parts["loss_mask_BT"]):
            return 0.0
        return policy_loss(**parts, clip_low=0.2, clip_high=0.28, total_tokens=7)[0].item()

    assert math.isclose(loss(slice(0, cut)) + loss(slice(cut, None)), loss(slice(None)), rel_tol=1e-9, abs_tol=1e-9)


@PROPERTY
@given(token_streams())
def test_the_other_losses_are_finite(streams: dict[str, torch.Tensor]) -> None:
    mask_BT, advantages_BT = streams["loss_mask_BT"], streams["advantages_BT"]
    log_probs_BT = streams["log_probs_BT"].clone().requires_grad_()
    shaped = shaped_loss(log_probs_BT, advantages_BT, mask_BT, gamma=0.1, total_tokens=5)
    finite_BT = streams["log_probs_BT"].masked_fill(mask_BT & torch.isinf(streams["log_probs_BT"]), -1e4)
    penalty = kl_penalty(finite_BT, streams["behaviour_log_probs_BT"], mask_BT, total_tokens=5)
    shaped.backward()
    assert math.isfinite(shaped.item())
    assert math.isfinite(penalty.item())
    assert penalty.item() >= 0
    assert log_probs_BT.grad is not None
    assert torch.isfinite(log_probs_BT.grad).all()


# -- samples and batches ----------------------------------------------------------------------------------


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


# -- the merge --------------------------------------------------------------------------------------------


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
