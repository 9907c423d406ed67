"""Token losses. Each sums over its mask and divides by the number of trained tokens in the whole iteration.

The losses of micro-batches therefore add up to the loss of one big batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp (as in verl): an overflowing ratio times a zero gradient is NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossStats:
    """Detached scalars. `clip_share` is divided by `total_tokens`, so the shares of micro-batches add up."""

    clip_share: Tensor
    """Tokens whose ratio was clipped (no gradient), divided by the total."""
    ratio_max: Tensor
    """The largest ratio of a trained token; 0 if there is none."""


def policy_loss(
    log_probs_BT: Tensor,
    behaviour_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    weights_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    total_tokens: int,
) -> tuple[Tensor, PolicyLossStats]:
    """sum over the mask of -rho * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), divided by `total_tokens`.

    r = exp(log_probs - behaviour_log_probs), both under the rollout prompt and of the distribution that samples
    rollouts (logits over their temperature), also for corrected tokens.

    Args:
        log_probs_BT: [B, T] of the current weights, with gradient; ignored where the mask is False.
        behaviour_log_probs_BT: [B, T] of the weights that sampled the rollout.
        advantages_BT: [B, T].
        weights_BT: [B, T]; rho for a corrector's tokens, otherwise 1 or the token's importance weight.
        loss_mask_BT: [B, T] bool, the trained tokens.
        clip_low: Lower clip range, in [0, 1).
        clip_high: Upper clip range, >= 0.
        total_tokens: Trained tokens of the iteration, >= 1.

    Returns:
        The loss, a scalar, and its statistics.

    Raises:
        ValueError: wrong shapes or dtypes, or a total below 1.

    Source: Schulman et al. 2017, arXiv 1707.06347 (clip); Yu et al. 2025, arXiv 2503.14476 (clip-higher,
    token mean); rho: arXiv 2610.13438.
    """
    _check(log_probs_BT, loss_mask_BT, total_tokens, behaviour_log_probs_BT, advantages_BT, weights_BT)
    log_ratio_BT = (log_probs_BT - behaviour_log_probs_BT).masked_fill(~loss_mask_BT, 0.0)
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain_BT = ratio_BT * advantages_BT
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    token_loss_BT = -weights_BT * torch.minimum(plain_BT, clipped_BT)
    loss = token_loss_BT.masked_fill(~loss_mask_BT, 0.0).sum() / total_tokens
    with torch.no_grad():
        clipped = ((clipped_BT < plain_BT) & loss_mask_BT).sum() / total_tokens
        ratio_max = ratio_BT.masked_fill(~loss_mask_BT, 0.0).max()
    return loss, PolicyLossStats(clip_share=clipped, ratio_max=ratio_max)


def shaped_loss(
    log_probs_BT: Tensor, advantages_BT: Tensor, loss_mask_BT: Tensor, *, gamma: float, total_tokens: int
) -> Tensor:
    """sum over the mask of -f(pi) * A, divided by `total_tokens`; f(p) = p / (p + gamma).

    For tokens of another policy. Their probability under that policy is taken as 1, so pi is the ratio. No clip.
    The gradient of f is steepest at small p, so a teacher's unlikely tokens are learned too.

    Args:
        log_probs_BT: [B, T] of the current weights, with gradient; ignored where the mask is False.
        advantages_BT: [B, T].
        loss_mask_BT: [B, T] bool, the teacher's trained tokens.
        gamma: > 0.
        total_tokens: Trained tokens of the iteration, including the policy's, >= 1.

    Returns:
        A scalar; exactly 0 if the mask is empty.

    Raises:
        ValueError: as `policy_loss`, or gamma not above 0.

    Source: Yan et al. 2025, arXiv 2504.14945 (LUFFY, policy shaping).
    """
    _check(log_probs_BT, loss_mask_BT, total_tokens, advantages_BT)
    if not gamma > 0:
        raise ValueError(f"gamma={gamma}: must be > 0")
    probabilities_BT = log_probs_BT.masked_fill(~loss_mask_BT, 0.0).exp()
    token_loss_BT = -(probabilities_BT / (probabilities_BT + gamma)) * advantages_BT
    return token_loss_BT.masked_fill(~loss_mask_BT, 0.0).sum() / total_tokens


def imitation_loss(log_probs_BT: Tensor, factors_BT: Tensor, loss_mask_BT: Tensor, *, total_tokens: int) -> Tensor:
    """Negative log-likelihood: sum over the mask of -factor * log pi, divided by `total_tokens`.

    Args:
        log_probs_BT: [B, T] of the current weights, with gradient; ignored where the mask is False.
        factors_BT: [B, T]; 1 for plain supervised learning.
        loss_mask_BT: [B, T] bool, the trained tokens.
        total_tokens: Trained tokens of the iteration, >= 1.

    Returns:
        A scalar in nats per trained token; infinite where a trained token has probability 0.

    Raises:
        ValueError: as `policy_loss`.
    """
    _check(log_probs_BT, loss_mask_BT, total_tokens, factors_BT)
    return -(log_probs_BT.masked_fill(~loss_mask_BT, 0.0) * factors_BT).sum() / total_tokens


def distillation_advantages(
    behaviour_log_probs_BT: Tensor, teacher_log_probs_BT: Tensor, loss_mask_BT: Tensor
) -> Tensor:
    """-(log pi - log pi_teacher) of each sampled token, detached: the negative estimate of the reverse KL.

    Its mean over tokens sampled from pi is -KL(pi || pi_teacher).

    Args:
        behaviour_log_probs_BT: [B, T] of the weights that sampled the rollout.
        teacher_log_probs_BT: [B, T] of the same tokens after the same prompt.
        loss_mask_BT: [B, T] bool, the trained tokens.

    Returns:
        [B, T] in nats; 0 where the mask is False.

    Raises:
        ValueError: wrong shapes or dtypes.

    Source: Agarwal et al. 2023, arXiv 2306.13649 (on-policy distillation); per token as a policy gradient in
    Lu and Thinking Machines Lab 2025, thinkingmachines.ai/blog/on-policy-distillation.
    """
    _check(behaviour_log_probs_BT, loss_mask_BT, 1, teacher_log_probs_BT)
    difference_BT = teacher_log_probs_BT.detach() - behaviour_log_probs_BT.detach()
    return difference_BT.masked_fill(~loss_mask_BT, 0.0)


def kl_penalty(
    log_probs_BT: Tensor, reference_log_probs_BT: Tensor, loss_mask_BT: Tensor, *, total_tokens: int
) -> Tensor:
    """KL(pi_theta || pi_reference) by the k3 estimator, exp(d) - d - 1 with d = log pi_ref - log pi_theta.

    Summed over the mask and divided by `total_tokens`; never negative. Not finite if a log-prob is not.

    Args:
        log_probs_BT: [B, T] of the current weights, with gradient.
        reference_log_probs_BT: [B, T] of the frozen reference.
        loss_mask_BT: [B, T] bool.
        total_tokens: Trained tokens of the iteration, >= 1.

    Returns:
        A scalar in nats, per trained token.

    Raises:
        ValueError: as `policy_loss`.

    Source: Schulman 2020, joschu.net/blog/kl-approx.html; used in GRPO, arXiv 2402.03300.
    """
    _check(log_probs_BT, loss_mask_BT, total_tokens, reference_log_probs_BT)
    difference_BT = (reference_log_probs_BT.detach() - log_probs_BT).masked_fill(~loss_mask_BT, 0.0)
    difference_BT = difference_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (torch.expm1(difference_BT) - difference_BT).sum() / total_tokens


def _check(log_probs_BT: Tensor, loss_mask_BT: Tensor, total_tokens: int, *others_BT: Tensor) -> None:
    if log_probs_BT.ndim != 2:
        raise ValueError(f"log-probs must be [B, T], not {tuple(log_probs_BT.shape)}")
    for other_BT in (loss_mask_BT, *others_BT):
        if other_BT.shape != log_probs_BT.shape:
            raise ValueError(f"shapes differ: {tuple(other_BT.shape)} and {tuple(log_probs_BT.shape)}")
    if loss_mask_BT.dtype is not torch.bool:
        raise ValueError(f"the loss mask must be bool, not {loss_mask_BT.dtype}")
    if not all(tensor.is_floating_point() for tensor in (log_probs_BT, *others_BT)):
        raise ValueError("log-probs, advantages and weights must be floating point")
    if total_tokens < 1:
        raise ValueError(f"total_tokens={total_tokens}: must be >= 1")
