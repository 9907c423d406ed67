"""GRPO. Dr. GRPO, RLOO and clip-higher are settings of it."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import AlgorithmSettings
from rti_exp.objective.advantages import group_advantages
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.losses import kl_penalty, policy_loss
from rti_exp.types import Group


class GRPO:
    """Group relative policy optimisation with a token-mean loss.

    There is no value function and no normalisation by sequence length.

    Source: Shao et al. 2024, arXiv 2402.03300.
    """

    def __init__(self, settings: AlgorithmSettings) -> None:
        self.settings = settings

    @property
    def needs_reference(self) -> bool:
        """Whether `loss` needs the log-probs of a frozen reference (beta > 0)."""
        return self.settings.beta > 0

    @property
    def trains_without_advantage(self) -> bool:
        """Whether the KL term trains trajectories with advantage 0 (beta > 0)."""
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
        """The clipped policy loss plus beta times the KL to the reference, per trained token of the iteration.

        Args:
            log_probs_BT: [B, T] with gradient; read only where the batch's loss mask is True.
            batch: Streams of the same [B, T].
            reference_log_probs_BT: [B, T]; required if beta > 0.

        Raises:
            ValueError: beta > 0 without reference log-probs, or wrong shapes.
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
                raise ValueError(f"algorithm.beta={self.settings.beta}: loss() needs the reference's log-probs")
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
