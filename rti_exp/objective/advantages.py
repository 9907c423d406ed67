"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import Baseline


def group_advantages(rewards_G: Tensor, *, baseline: Baseline, normalize_std: bool, eps: float) -> Tensor:
    """Advantages of one group's members: A_i = (R_i - baseline_i) / (std R + eps).

    The baseline is the mean of the valid rewards, or (leave one out) the mean of the others. The standard
    deviation is the sample one (divided by n - 1), as in TRL and verl; `normalize_std` off is Dr. GRPO.
    Rewards that differ by rounding only count as equal and give exactly 0, as does a lone valid member.

    Args:
        rewards_G: [G] floating point; NaN marks an invalid member (infrastructure failure).
        baseline: What is subtracted.
        normalize_std: Whether to divide by the standard deviation.
        eps: Added to the standard deviation, unit of the reward.

    Returns:
        [G], dtype of `rewards_G`, never NaN; 0 for invalid members, which are left out of all statistics.

    Raises:
        ValueError: not a floating [G] tensor, or an infinite reward.

    Source: Shao et al. 2024, arXiv 2402.03300 (GRPO); Ahmadian et al. 2024, arXiv 2402.14740 (RLOO);
    Liu et al. 2025, arXiv 2503.20783 (Dr. GRPO).
    """
    if rewards_G.ndim != 1 or not rewards_G.is_floating_point():
        raise ValueError(f"rewards_G: a floating [G] tensor, not {rewards_G.dtype} of shape {tuple(rewards_G.shape)}")
    if torch.isinf(rewards_G).any():
        raise ValueError(f"rewards_G holds an infinite reward: {rewards_G.tolist()}")
    valid_G = ~torch.isnan(rewards_G)
    rewards_V = rewards_G[valid_G]
    advantages_G = torch.zeros_like(rewards_G)
    count = rewards_V.numel()
    if count < 2 or _equal_up_to_rounding(rewards_V):
        return advantages_G
    advantages_V = rewards_V - rewards_V.mean()
    if baseline is Baseline.leave_one_out:
        # R_i - mean of the others = n / (n - 1) * (R_i - mean of all).
        advantages_V = advantages_V * (count / (count - 1))
    if normalize_std:
        advantages_V = advantages_V / (rewards_V.std(correction=1) + eps)
    advantages_G[valid_G] = advantages_V
    return advantages_G


def advantages_from_members(rewards_G: Tensor, baseline_G: Tensor) -> Tensor:
    """Advantages R_i - mean of the rewards of the members in `baseline_G`, without a standard deviation.

    Args:
        rewards_G: [G] floating point; NaN marks an invalid member (infrastructure failure).
        baseline_G: [G] bool, whose rewards make the mean; invalid ones among them are left out.

    Returns:
        [G], dtype of `rewards_G`, never NaN; 0 for invalid members. All 0 where all rewards are equal, or no
        valid member is in the baseline.

    Raises:
        ValueError: shapes or dtypes that do not fit, or an infinite reward.

    Source: Yan et al. 2025, arXiv 2504.14945 (LUFFY), with the on-policy members only as baseline.
    """
    if rewards_G.ndim != 1 or not rewards_G.is_floating_point() or baseline_G.dtype is not torch.bool:
        raise ValueError(f"a floating [G] and a bool [G], not {rewards_G.dtype} and {baseline_G.dtype}")
    if rewards_G.shape != baseline_G.shape:
        raise ValueError(f"shapes differ: {tuple(rewards_G.shape)} and {tuple(baseline_G.shape)}")
    if torch.isinf(rewards_G).any():
        raise ValueError(f"rewards_G holds an infinite reward: {rewards_G.tolist()}")
    valid_G = ~torch.isnan(rewards_G)
    advantages_G = torch.zeros_like(rewards_G)
    rewards_V, members_M = rewards_G[valid_G], rewards_G[valid_G & baseline_G]
    if not members_M.numel() or _equal_up_to_rounding(rewards_V):
        return advantages_G
    mean = members_M[0] if _equal_up_to_rounding(members_M) else members_M.mean()
    advantages_V = rewards_V - mean
    # A member that equals the baseline up to rounding has no signal.
    negligible_V = advantages_V.abs() <= 4 * torch.finfo(rewards_V.dtype).eps * rewards_V.abs().max()
    advantages_G[valid_G] = advantages_V.masked_fill(negligible_V, 0.0)
    return advantages_G


def _equal_up_to_rounding(rewards_V: Tensor) -> bool:
    spread = rewards_V.max() - rewards_V.min()
    return bool(spread <= 4 * torch.finfo(rewards_V.dtype).eps * rewards_V.abs().max())
