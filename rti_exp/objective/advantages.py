"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import Baseline


def group_advantages(rewards_G: Tensor, *, baseline: Baseline, normalize_std: bool, eps: float) -> Tensor:
    """Advantages of one group's members: A_i = (R_i - baseline_i) / (std R + eps).

    The baseline is the mean of the valid rewards, or with leave-one-out the mean of the other members' rewards. The
    standard deviation is the sample standard deviation (n - 1), as in TRL and verl; without `normalize_std` this is
    Dr. GRPO. Rewards that differ only by rounding count as equal and give exactly 0, as does a single valid member.

    Args:
        rewards_G: [G] floating point; NaN marks an invalid member (infrastructure failure).
        baseline: The baseline to subtract.
        normalize_std: Whether to divide by the standard deviation.
        eps: Added to the standard deviation, in units of the reward.

    Returns:
        [G], dtype of `rewards_G`, never NaN; 0 for invalid members, which are excluded from all statistics.

    Raises:
        ValueError: `rewards_G` is not a floating-point [G] tensor, or a reward is infinite.

    Source: Shao et al. 2024, arXiv 2402.03300 (GRPO); Ahmadian et al. 2024, arXiv 2402.14740 (RLOO);
    Liu et al. 2025, arXiv 2503.20783 (Dr. GRPO).
    """
    _check_rewards(rewards_G)
    valid_G = ~torch.isnan(rewards_G)
    rewards_V = rewards_G[valid_G]
    advantages_G = torch.zeros_like(rewards_G)
    count = rewards_V.numel()
    if count < 2 or _equal_up_to_rounding(rewards_V):
        return advantages_G
    advantages_V = rewards_V - rewards_V.mean()
    if baseline is Baseline.leave_one_out:
        # R_i - mean of the other rewards = n / (n - 1) * (R_i - mean of all rewards).
        advantages_V = advantages_V * (count / (count - 1))
    if normalize_std:
        advantages_V = advantages_V / (rewards_V.std(correction=1) + eps)
    advantages_G[valid_G] = advantages_V
    return advantages_G


def advantages_from_members(rewards_G: Tensor, baseline_G: Tensor) -> Tensor:
    """Advantages R_i - mean reward of the members in `baseline_G`, not divided by a standard deviation.

    Args:
        rewards_G: [G] floating point; NaN marks an invalid member (infrastructure failure).
        baseline_G: [G] bool, the members whose mean reward is the baseline; invalid members are excluded.

    Returns:
        [G], dtype of `rewards_G`, never NaN; 0 for invalid members. All are 0 if all rewards are equal, or if the
        baseline has no valid member.

    Raises:
        ValueError: a wrong shape or dtype, or an infinite reward.

    Source: Yan et al. 2025, arXiv 2504.14945 (LUFFY), with a baseline of the on-policy members only.
    """
    _check_rewards(rewards_G)
    if baseline_G.dtype is not torch.bool:
        raise ValueError(f"baseline_G: must be a bool [G] tensor, not {baseline_G.dtype}")
    if rewards_G.shape != baseline_G.shape:
        raise ValueError(f"shapes differ: {tuple(rewards_G.shape)} and {tuple(baseline_G.shape)}")
    valid_G = ~torch.isnan(rewards_G)
    advantages_G = torch.zeros_like(rewards_G)
    rewards_V, baseline_rewards_M = rewards_G[valid_G], rewards_G[valid_G & baseline_G]
    if not baseline_rewards_M.numel() or _equal_up_to_rounding(rewards_V):
        return advantages_G
    # The mean of equal rewards may differ from them by rounding.
    equal = _equal_up_to_rounding(baseline_rewards_M)
    mean = baseline_rewards_M[0] if equal else baseline_rewards_M.mean()
    advantages_V = rewards_V - mean
    # A member that equals the baseline up to rounding has no signal.
    negligible_V = advantages_V.abs() <= 4 * torch.finfo(rewards_V.dtype).eps * rewards_V.abs().max()
    advantages_G[valid_G] = advantages_V.masked_fill(negligible_V, 0.0)
    return advantages_G


def _check_rewards(rewards_G: Tensor) -> None:
    if rewards_G.ndim != 1 or not rewards_G.is_floating_point():
        shape = tuple(rewards_G.shape)
        raise ValueError(f"rewards_G: must be a floating-point [G] tensor, not {rewards_G.dtype} of shape {shape}")
    if torch.isinf(rewards_G).any():
        raise ValueError(f"rewards_G: must have no infinite reward, not {rewards_G.tolist()}")


def _equal_up_to_rounding(rewards_V: Tensor) -> bool:
    spread = rewards_V.max() - rewards_V.min()
    return bool(spread <= 4 * torch.finfo(rewards_V.dtype).eps * rewards_V.abs().max())
