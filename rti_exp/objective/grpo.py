"""GRPO as an algorithm of the learner: advantages of a group, and the loss of a batch.

Dr. GRPO, RLOO and clip-higher are settings of it. Another algorithm is a sibling class with the same
three members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rti_exp.objective.advantages import group_advantages
from rti_exp.objective.losses import kl_penalty, policy_loss
from rti_exp.settings import AlgorithmSettings
from rti_exp.types import Group


class LossInputs(Protocol):
    """What a loss reads of a batch: [B, T] tensors, and the whole iteration's count of trained tokens."""

    @property
    def loss_mask_BT(self) -> Tensor: ...
    @property
    def behaviour_log_probs_BT(self) -> Tensor: ...
    @property
    def advantages_BT(self) -> Tensor: ...
    @property
    def weights_BT(self) -> Tensor: ...
    @property
    def total_trained_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats:
    """Detached scalars of one batch. All but `ratio_max` are divided by the iteration's trained tokens."""

    policy: Tensor
    kl: Tensor
    clip_share: Tensor
    ratio_max: Tensor


class GRPO:
    """Group relative policy optimisation (Shao et al. 2024, arXiv 2402.03300) with a token-mean loss.

    Left out: nothing is learned of a value function, and no sequence-length normalisation is done.
    """

    def __init__(self, settings: AlgorithmSettings) -> None:
        self.settings = settings

    @property
    def needs_reference(self) -> bool:
        """Whether `loss` wants the log-probs of a frozen reference (beta > 0)."""
        return self.settings.beta > 0

    def advantages(self, group: Group) -> list[float]:
        """One advantage for each of `group.trajectories`; 0 for infrastructure failures."""
        rewards_G = torch.tensor([trajectory.reward for trajectory in group.trajectories], dtype=torch.float64)
        return group_advantages(
            rewards_G,
            baseline=self.settings.baseline,
            normalize_std=self.settings.normalize_std,
            eps=self.settings.advantage_eps,
        ).tolist()

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """Clipped policy loss plus beta times the KL to the reference, per trained token of the iteration.

        Args:
            log_probs_BT: [B, T] with gradient; read only where the batch's loss mask is True.
            batch: The streams of the same [B, T].
            reference_log_probs_BT: [B, T]; needed exactly when beta > 0.

        Raises:
            ValueError: beta > 0 without reference log-probs, or shapes that do not fit.
        """
        policy, policy_stats = policy_loss(
            log_probs_BT,
            batch.behaviour_log_probs_BT,
            batch.advantages_BT,
            batch.weights_BT,
            batch.loss_mask_BT,
            clip_low=self.settings.clip_low,
            clip_high=self.settings.clip_high,
            total_tokens=batch.total_trained_tokens,
        )
        loss, kl = policy, torch.zeros_like(policy)
        if self.needs_reference:
            if reference_log_probs_BT is None:
                raise ValueError("algorithm.beta > 0 needs the reference's log-probs")
            kl = kl_penalty(
                log_probs_BT, reference_log_probs_BT, batch.loss_mask_BT, total_tokens=batch.total_trained_tokens
            )
            loss = policy + self.settings.beta * kl
        return loss, LossStats(
            policy=policy.detach(),
            kl=kl.detach(),
            clip_share=policy_stats.clip_share,
            ratio_max=policy_stats.ratio_max,
        )
