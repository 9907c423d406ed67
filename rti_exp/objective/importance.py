"""Importance weights of tokens whose sampler and trainer are different implementations of one policy."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def truncated_importance_weights(log_probs_T: Tensor, sampler_log_probs_T: Tensor, cap: float) -> Tensor:
    """min(exp(log pi - log pi_sampler), cap), detached: corrects for the sampler's different arithmetic.

    The weight multiplies the token's loss. pi and pi_sampler have the same parameters; with the same arithmetic, all
    importance weights are 1.

    Args:
        log_probs_T: [T] of the sampled tokens, by the implementation that trains.
        sampler_log_probs_T: [T] of the same tokens by the sampler, at the same temperature.
        cap: > 0; inf means no truncation.

    Returns:
        [T], at most `cap`; equal log-probs give exactly min(1, cap).

    Raises:
        ValueError: wrong shapes or dtypes, a log-prob that is not finite, or a cap out of range.

    Source: truncated importance sampling, Ionides 2008 (doi.org/10.1198/106186008X320456); for the mismatch between a
    rollout engine and a trainer in Yao et al. 2025, fengyao.notion.site/off-policy-rl.
    """
    if log_probs_T.ndim != 1 or log_probs_T.shape != sampler_log_probs_T.shape:
        shapes = tuple(log_probs_T.shape), tuple(sampler_log_probs_T.shape)
        raise ValueError(f"log-probs of shapes {shapes[0]} and {shapes[1]}: both must be [T]")
    if not (log_probs_T.is_floating_point() and sampler_log_probs_T.is_floating_point()):
        raise ValueError("log-probs must be floating point")
    if not cap > 0:
        raise ValueError(f"cap={cap}: must be > 0")
    if not (log_probs_T.isfinite().all() and sampler_log_probs_T.isfinite().all()):
        raise ValueError("a log-prob of a sampled token is not finite")
    log_ratio_T = log_probs_T.detach() - sampler_log_probs_T.detach()
    # Clipped before exp against overflow, and after it because exp(log(cap)) rounds.
    limit = math.log(cap) if math.isfinite(cap) else math.inf
    return torch.clamp(log_ratio_T, max=limit).exp().clamp(max=cap)
