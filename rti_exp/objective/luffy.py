"""LUFFY: GRPO on groups in which some members begin with a teacher's turns."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rti_exp.config.algorithm_settings import BaselineMembers, LuffySettings
from rti_exp.objective.advantages import advantages_from_members
from rti_exp.objective.algorithm import LossInputs, LossStats
from rti_exp.objective.grpo import GRPO
from rti_exp.objective.losses import shaped_loss
from rti_exp.types import Author, Group


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _PolicyTokens:
    """A batch that trains only the policy's tokens, not the teacher's."""

    loss_mask_BT: Tensor
    behaviour_log_probs_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    authors_BT: Tensor
    total_trained_tokens: int


class LUFFY(GRPO):
    """Learning to reason under off-policy guidance (Yan et al. 2025, arXiv 2504.14945).

    The loss of the teacher's tokens is -A f(pi) with f(p) = p / (p + gamma). All other tokens have GRPO's loss, with
    LUFFY's defaults: no clip, no standard deviation. Without teacher tokens it equals GRPO bit for bit.
    `rti_exp.rollout.teacher_rollouts` samples the teacher's members.
    """

    settings: LuffySettings

    def __init__(self, settings: LuffySettings) -> None:
        super().__init__(settings)
        self.settings = settings

    def advantages(self, group: Group) -> list[float]:
        """One advantage for each of `group.trajectories`; 0 for infrastructure failures."""
        if self.settings.baseline_members is BaselineMembers.all:
            return super().advantages(group)
        rewards_G = torch.tensor([trajectory.reward for trajectory in group.trajectories], dtype=torch.float64)
        on_policy_G = torch.tensor([not trajectory.has_turn_by(Author.TEACHER) for trajectory in group.trajectories])
        return advantages_from_members(rewards_G, on_policy_G).tolist()

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """GRPO's loss on the policy's tokens plus the shaped loss on the teacher's. The arguments are GRPO's.

        The KL term, if enabled, covers the policy's tokens only.
        """
        teacher_BT = batch.loss_mask_BT & (batch.authors_BT == Author.TEACHER)
        policy_tokens = _PolicyTokens(
            loss_mask_BT=batch.loss_mask_BT & ~teacher_BT,
            behaviour_log_probs_BT=batch.behaviour_log_probs_BT,
            advantages_BT=batch.advantages_BT,
            weights_BT=batch.weights_BT,
            authors_BT=batch.authors_BT,
            total_trained_tokens=batch.total_trained_tokens,
        )
        loss, stats = super().loss(log_probs_BT, policy_tokens, reference_log_probs_BT)
        shaped = shaped_loss(
            log_probs_BT,
            batch.advantages_BT,
            teacher_BT,
            gamma=self.settings.gamma,
            total_tokens=batch.total_trained_tokens,
        )
        return loss + shaped, dataclasses.replace(stats, policy=stats.policy + shaped.detach())
