from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rti_exp.objective.losses import (
    PolicyLossStats,
    distillation_advantages,
    imitation_loss,
    kl_penalty,
    policy_loss,
    shaped_loss,
)


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def loss_of(
    log_probs_BT: Tensor,
    behaviour_BT: Tensor,
    advantages_BT: Tensor,
    *,
    weights_BT: Tensor | None = None,
    mask_BT: Tensor | None = None,
    total: int = 1,
) -> tuple[Tensor, PolicyLossStats]:
    return policy_loss(
        log_probs_BT,
        behaviour_BT,
        advantages_BT,
        torch.ones_like(log_probs_BT) if weights_BT is None else weights_BT,
        torch.ones_like(log_probs_BT, dtype=torch.bool) if mask_BT is None else mask_BT,
        clip_low=0.2,
        clip_high=0.28,
        total_tokens=total,
    )


# Ratio r, advantage A -> -min(r A, clip(r, 0.8, 1.28) A), whether the clip decided, d loss / d log-prob.
CASES = [
    (1.0, 2.0, -2.0, False, -2.0),
    (1.5, 2.0, -2.56, True, 0.0),
    (0.5, 2.0, -1.0, False, -1.0),
    (1.5, -2.0, 3.0, False, 3.0),
    (0.5, -2.0, 1.6, True, 0.0),
    (1.27, 1.0, -1.27, False, -1.27),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "clipped", "gradient"), CASES)
def test_one_token(ratio: float, advantage: float, loss: float, clipped: bool, gradient: float) -> None:
    log_probs_BT = row(math.log(ratio) - 1.0).requires_grad_()
    value, stats = loss_of(log_probs_BT, row(-1.0), row(advantage))
    value.backward()
    assert value.item() == pytest.approx(loss, rel=1e-12)
    assert stats.clip_share.item() == float(clipped)
    assert stats.ratio_max.item() == pytest.approx(ratio, rel=1e-12)
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad.item() == pytest.approx(gradient, rel=1e-12, abs=1e-15)


def test_weights_multiply_the_advantage() -> None:
    value, _ = loss_of(row(-1.0, -1.0), row(-1.0, -1.0), row(2.0, -4.0), weights_BT=row(1.5, 0.5), total=1)
    assert value.item() == -(1.5 * 2.0) + 0.5 * 4.0


def test_divides_by_the_total_that_is_passed_in() -> None:
    value, stats = loss_of(row(math.log(2.0), 0.0), row(0.0, 0.0), row(1.0, 1.0), total=8)
    assert value.item() == pytest.approx(-(1.28 + 1.0) / 8, rel=1e-12)
    assert stats.clip_share.item() == 1 / 8


def test_masked_tokens_change_nothing() -> None:
    log_probs_BT = row(-1.0, math.nan, math.inf).requires_grad_()
    mask_BT = torch.tensor([[True, False, False]])
    value, stats = loss_of(log_probs_BT, row(-1.0, 0.0, -5.0), row(2.0, 7.0, 7.0), mask_BT=mask_BT)
    value.backward()
    assert value.item() == -2.0
    assert stats.ratio_max.item() == 1.0
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad.tolist() == [[-2.0, 0.0, 0.0]]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_overflowing_ratio_has_finite_loss_and_gradient(advantage: float) -> None:
    log_probs_BT = row(-1.0).requires_grad_()
    value, _ = loss_of(log_probs_BT, row(-2000.0), row(advantage))
    value.backward()
    assert math.isfinite(value.item())
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad.tolist() == [[0.0]]


def test_nan_is_not_hidden() -> None:
    assert math.isnan(loss_of(row(math.nan), row(-1.0), row(1.0))[0].item())


def test_equal_log_probs_give_a_ratio_of_exactly_one() -> None:
    log_probs_BT = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) - 5
    value, stats = loss_of(log_probs_BT, log_probs_BT.clone(), torch.ones_like(log_probs_BT), total=150)
    assert value.item() == -1.0
    assert stats.ratio_max.item() == 1.0
    assert stats.clip_share.item() == 0.0


def test_kl_is_k3() -> None:
    # d = log(ref / theta) = log 2: exp(d) - d - 1 = 1 - log 2; d = 0 contributes nothing.
    value = kl_penalty(row(-1.0, -1.0), row(math.log(2) - 1.0, -1.0), torch.tensor([[True, True]]), total_tokens=4)
    assert value.item() == pytest.approx((1 - math.log(2)) / 4, rel=1e-12)


def test_kl_gradient_and_mask() -> None:
    # d/d log theta of exp(d) - d - 1 is 1 - exp(d).
    log_probs_BT = row(-1.0, -1.0).requires_grad_()
    mask_BT = torch.tensor([[True, False]])
    kl_penalty(log_probs_BT, row(math.log(2) - 1.0, math.nan), mask_BT, total_tokens=1).backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad.tolist()[0] == pytest.approx([-1.0, 0.0], rel=1e-12)


def test_wrong_shapes_and_types_are_refused() -> None:
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        kl_penalty(torch.zeros(2), torch.zeros(2), mask_BT, total_tokens=1)
    with pytest.raises(ValueError, match="shapes differ"):
        kl_penalty(torch.zeros(1, 2), torch.zeros(1, 3), mask_BT, total_tokens=1)
    with pytest.raises(ValueError, match="must be bool"):
        kl_penalty(torch.zeros(1, 2), torch.zeros(1, 2), mask_BT.float(), total_tokens=1)
    with pytest.raises(ValueError, match="floating"):
        kl_penalty(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.long), mask_BT, total_tokens=1)
    with pytest.raises(ValueError, match="total_tokens=0"):
        kl_penalty(torch.zeros(1, 2), torch.zeros(1, 2), mask_BT, total_tokens=0)


def test_shaped_loss_and_its_gradient() -> None:
    # f(p) = p / (p + 0.1): f(0.1) = 1/2, f(0.4) = 4/5; d f / d log p = 0.1 p / (p + 0.1)^2 = 1/4 and 4/25.
    log_probs_BT = row(math.log(0.1), math.log(0.4), -7.0).requires_grad_()
    loss = shaped_loss(
        log_probs_BT, row(2.0, -1.0, 5.0), torch.tensor([[True, True, False]]), gamma=0.1, total_tokens=4
    )
    assert loss.item() == pytest.approx(-(2 * 0.5 - 0.8) / 4, abs=1e-12)
    loss.backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad[0].tolist() == pytest.approx([-2 * 0.25 / 4, 0.16 / 4, 0.0], abs=1e-12)


def test_shaped_loss_of_impossible_and_masked_tokens_is_finite() -> None:
    log_probs_BT = row(-math.inf, math.nan)
    mask_BT = torch.tensor([[True, False]])
    assert shaped_loss(log_probs_BT, row(1.0, 1.0), mask_BT, gamma=0.1, total_tokens=1).item() == 0.0
    nothing_BT = torch.zeros(1, 2, dtype=torch.bool)
    assert shaped_loss(log_probs_BT, row(1.0, 1.0), nothing_BT, gamma=0.1, total_tokens=1).item() == 0.0


@pytest.mark.parametrize("gamma", [0.0, -0.1, math.nan])
def test_gamma_must_be_positive(gamma: float) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        shaped_loss(row(-1.0), row(1.0), torch.tensor([[True]]), gamma=gamma, total_tokens=1)


def test_imitation_loss_and_its_gradient() -> None:
    log_probs_BT = row(-1.0, -3.0, -5.0).requires_grad_()
    mask_BT = torch.tensor([[True, True, False]])
    loss = imitation_loss(log_probs_BT, row(1.0, 0.5, 1.0), mask_BT, total_tokens=4)
    assert loss.item() == (1.0 + 1.5) / 4
    loss.backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad[0].tolist() == [-0.25, -0.125, 0.0]


def test_distillation_advantages_are_log_prob_differences_without_gradient() -> None:
    behaviour_BT, teacher_BT = row(-1.0, -0.5, -9.0), row(-0.25, -2.5, -1.0).requires_grad_()
    mask_BT = torch.tensor([[True, True, False]])
    advantages_BT = distillation_advantages(behaviour_BT, teacher_BT, mask_BT)
    assert advantages_BT.tolist() == [[0.75, -2.0, 0.0]]
    assert not advantages_BT.requires_grad


def test_mean_distillation_advantage_is_the_negative_reverse_kl() -> None:
    # pi = (3/4, 1/4), teacher = (1/2, 1/2): three tokens of the first kind for one of the second.
    behaviour_BT = row(*[math.log(0.75)] * 3, math.log(0.25))
    teacher_BT = row(*[math.log(0.5)] * 4)
    mask_BT = torch.ones(1, 4, dtype=torch.bool)
    mean = distillation_advantages(behaviour_BT, teacher_BT, mask_BT).mean().item()
    assert mean == pytest.approx(-(0.75 * math.log(1.5) + 0.25 * math.log(0.5)), abs=1e-12)


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_without_a_clip_the_loss_is_the_ratio_times_the_advantage(ratio: float, advantage: float) -> None:
    log_probs_BT = row(math.log(ratio) - 1.0).requires_grad_()
    mask_BT = torch.tensor([[True]])
    loss, stats = policy_loss(
        log_probs_BT, row(-1.0), row(advantage), row(1.0), mask_BT, clip_low=1.0, clip_high=math.inf, total_tokens=1
    )
    loss.backward()
    assert log_probs_BT.grad is not None
    assert loss.item() == pytest.approx(-ratio * advantage, rel=1e-12)
    assert log_probs_BT.grad.item() == pytest.approx(-ratio * advantage, rel=1e-12)
    assert stats.clip_share.item() == 0.0
