"""The weight rho of a corrected token. (`importance.py` has the weights of sampled tokens.)"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def correction_weights(calibration_log_probs_T: Tensor, rollout_log_probs_T: Tensor, eps_cal: float) -> Tensor:
    """rho_t = clip(exp(log pi_cal - log pi_roll), 1 - eps_cal, 1 + eps_cal), detached.

    This is the inverse of an importance weight: a token that is likelier under the correction prompt gets a larger
    weight. rho multiplies the advantage after group normalisation.

    Args:
        calibration_log_probs_T: [T] under the correction prompt, at temperature 1.
        rollout_log_probs_T: [T] of the same tokens under the rollout prompt, at temperature 1.
        eps_cal: In [0, 1]; at 0 every weight is exactly 1.

    Returns:
        [T], finite and within the clip range; equal log-probs, -inf included, give exactly 1.

    Raises:
        ValueError: wrong shapes or dtypes, a NaN log-prob, or eps_cal out of range.

    Source: Rollout-Time Intervention, arXiv 2610.13438.
    """
    if calibration_log_probs_T.ndim != 1 or calibration_log_probs_T.shape != rollout_log_probs_T.shape:
        shapes = tuple(calibration_log_probs_T.shape), tuple(rollout_log_probs_T.shape)
        raise ValueError(f"log-probs of shapes {shapes[0]} and {shapes[1]}: both must be [T]")
    if not (calibration_log_probs_T.is_floating_point() and rollout_log_probs_T.is_floating_point()):
        raise ValueError("log-probs must be floating point")
    if not 0 <= eps_cal <= 1:
        raise ValueError(f"eps_cal={eps_cal}: must be in [0, 1]")
    if torch.isnan(calibration_log_probs_T).any() or torch.isnan(rollout_log_probs_T).any():
        raise ValueError("a log-prob of a correction is NaN")
    calibration_T, rollout_T = calibration_log_probs_T.detach(), rollout_log_probs_T.detach()
    log_ratio_T = torch.where(calibration_T == rollout_T, torch.zeros_like(rollout_T), calibration_T - rollout_T)
    # Clipped before exp against overflow, and after it because exp(log(1 + eps)) rounds.
    lowest = math.log1p(-eps_cal) if eps_cal < 1 else -math.inf
    ratio_T = log_ratio_T.clamp(lowest, math.log1p(eps_cal)).exp()
    return ratio_T.clamp(1 - eps_cal, 1 + eps_cal)
