"""Supervised learning on accepted corrections: imitation without reinforcement learning."""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import UpdateSettings
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.losses import MAX_LOG_RATIO, imitation_loss
from rti_exp.types import Group


class SFT:
    """Maximum likelihood of trajectories with an accepted correction; all other trajectories are ignored.

    `settings.scope` selects their trained tokens; the default of `algorithm=sft` starts at the corrected turn. There is
    no advantage, no weight rho and no contrast with failures, so RTI's gain over this arm comes from reinforcement
    learning.
    """

    needs_reference = False
    trains_without_advantage = False

    def __init__(self, settings: UpdateSettings) -> None:
        self.settings = settings

    def advantages(self, group: Group) -> list[float]:
        """1 for a trajectory with an accepted correction, otherwise 0."""
        return [float(trajectory.fork is not None and trajectory.valid) for trajectory in group.trajectories]

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """The mean negative log-likelihood of the iteration's trained tokens, in nats.

        Args:
            log_probs_BT: [B, T] with gradient; read only where the batch's loss mask is True.
            batch: Streams of the same [B, T].
            reference_log_probs_BT: Ignored.

        Raises:
            ValueError: wrong shapes.
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
