"""Supervised learning on accepted corrections: imitation without reinforcement."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import UpdateSettings
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.losses import MAX_LOG_RATIO, imitation_loss
from rti_exp.types import Group


class SFT:
    """Maximum likelihood of the trajectories that a correction led to success, and of nothing else.

    Which of their tokens is `settings.scope` (from the corrected turn on, by default of `algorithm=sft`). There
    is no advantage, no weight rho and no failure to contrast with, so that what RTI gains over this arm is owed
    to the reinforcement.
    """

    needs_reference = False
    trains_without_advantage = False

    def __init__(self, settings: UpdateSettings) -> None:
        self.settings = settings

    def advantages(self, group: Group) -> list[float]:
        """1 for a trajectory with an accepted correction, 0 for every other."""
        return [float(trajectory.fork is not None and trajectory.valid) for trajectory in group.trajectories]

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """The mean negative log-likelihood of the iteration's trained tokens, in nats.

        Args:
            log_probs_BT: [B, T] with gradient; read only where the batch's loss mask is True.
            batch: The streams of the same [B, T].
            reference_log_probs_BT: Not read.

        Raises:
            ValueError: shapes that do not fit.
        """
        loss = imitation_loss(
            log_probs_BT, batch.advantages_BT, batch.loss_mask_BT, total_tokens=batch.total_trained_tokens
        )
        with torch.no_grad():
            log_ratio_BT = (log_probs_BT - batch.behaviour_log_probs_BT).masked_fill(~batch.loss_mask_BT, 0.0)
            ratio_max = log_ratio_BT.clamp(max=MAX_LOG_RATIO).exp().masked_fill(~batch.loss_mask_BT, 0.0).max()
        return loss, LossStats(
            policy=loss.detach(),
            kl=torch.zeros_like(ratio_max),
            clip_share=torch.zeros_like(ratio_max),
            ratio_max=ratio_max,
        )
