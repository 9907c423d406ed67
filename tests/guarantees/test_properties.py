"""Objective, gate, merge and batches over all inputs that can come, drawn by hypothesis: finite, counted, right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import Baseline, GateSettings
from rti_exp.intervention.gate import PerplexityGate, perplexity
from rti_exp.objective.advantages import advantages_from_members, group_advantages
from rti_exp.objective.losses import kl_penalty, policy_loss, shaped_loss
from rti_exp.objective.passk import pass_at_k, pass_hat_k
from rti_exp.objective.weights import correction_weights

PROPERTY = settings(deadline=None, max_examples=150, derandomize=True)

REWARDS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5]), st.floats(1e-3, 1e9), st.floats(-1e9, -1e-3))
MEMBERS = st.lists(st.one_of(REWARDS, st.just(math.nan)), min_size=0, max_size=12)
LOG_PROBS = st.one_of(st.floats(-1e4, 0.0), st.sampled_from([0.0, -1e-12, -745.2, -1e4]))
POSSIBLE_LOG_PROBS = st.one_of(LOG_PROBS, st.just(-math.inf))


# -- advantages -------------------------------------------------------------------------------------------


def is_open(delta: float, log_probs: Sequence[float]) -> bool:
    return PerplexityGate(default_settings(GateSettings, delta=delta)).passes(log_probs)


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


# -- the merge --------------------------------------------------------------------------------------------
