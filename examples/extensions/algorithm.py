"""An algorithm in one file: CISPO, which clips the importance weight and keeps the gradient of every token.

Source: MiniMax 2025, arXiv 2506.13585.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rti_exp.config.settings import AlgorithmSettings
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.grpo import GRPO


class CISPO(GRPO):
    """GRPO's advantages; the loss is -rho * clip(r).detach() * A * log pi, summed over the trained tokens."""

    def __init__(self, settings: AlgorithmSettings) -> None:
        super().__init__(settings)

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        mask_BT, total = batch.loss_mask_BT, batch.total_trained_tokens
        ratio_BT = (log_probs_BT - batch.behaviour_log_probs_BT).masked_fill(~mask_BT, 0.0).detach().exp()
        clipped_BT = ratio_BT.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        token_loss_BT = -batch.weights_BT * clipped_BT * batch.advantages_BT * log_probs_BT
        loss = token_loss_BT.masked_fill(~mask_BT, 0.0).sum() / total
        stats = LossStats(
            policy=loss.detach(),
            kl=torch.zeros(()),
            clip_share=((clipped_BT != ratio_BT) & mask_BT).sum() / total,
            ratio_max=ratio_BT.masked_fill(~mask_BT, 0.0).max(),
        )
        return loss, stats
