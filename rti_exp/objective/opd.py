"""On-policy distillation: a teacher scores each token of the student's own rollouts."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.algorithm_settings import DistillationSettings
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.losses import distillation_advantages, policy_loss
from rti_exp.types import Group


class OPD:
    """Policy gradient with the advantage -(log pi - log pi_teacher) for each sampled token.

    There are no rewards, no group baselines and no discounting. The teacher is the learner's reference model: it scores
    each trained token once per iteration, under the rollout prompt.

    Source: Lu and Thinking Machines Lab 2025, thinkingmachines.ai/blog/on-policy-distillation; Agarwal et al.
    2023, arXiv 2306.13649.
    """

    needs_reference = True
    trains_without_advantage = False

    def __init__(self, settings: DistillationSettings) -> None:
        self.settings = settings

    def advantages(self, group: Group) -> list[float]:
        """1 for each valid trajectory, with any reward; `loss` computes the advantage of each token."""
        return [float(trajectory.valid) for trajectory in group.trajectories]

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """The clipped policy loss with the teacher's advantages; `kl` estimates the reverse KL, in nats.

        Args:
            log_probs_BT: [B, T] with gradient; read only where the batch's loss mask is True.
            batch: Streams of the same [B, T].
            reference_log_probs_BT: [B, T] of the teacher.

        Raises:
            ValueError: the teacher's log-probs are missing, or wrong shapes.
        """
        if reference_log_probs_BT is None:
            raise ValueError("on-policy distillation needs the teacher's log-probs")
        signal_BT = distillation_advantages(batch.behaviour_log_probs_BT, reference_log_probs_BT, batch.loss_mask_BT)
        loss, stats = policy_loss(
            log_probs_BT,
            batch.behaviour_log_probs_BT,
            batch.advantages_BT * signal_BT,
            batch.weights_BT,
            batch.loss_mask_BT,
            clip_low=self.settings.clip_low,
            clip_high=self.settings.clip_high,
            total_tokens=batch.total_trained_tokens,
        )
        return loss, LossStats(
            policy=loss.detach(),
            kl=torch.sum(-signal_BT) / batch.total_trained_tokens,
            clip_share=stats.clip_share,
            ratio_max=stats.ratio_max,
        )
