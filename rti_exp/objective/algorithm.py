"""What an algorithm of the learner is. GRPO, LUFFY, OPD and SFT are siblings, a file each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

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
    def authors_BT(self) -> Tensor: ...
    @property
    def total_trained_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossStats:
    """Detached scalars of one batch. All but `ratio_max` are divided by the iteration's trained tokens."""

    policy: Tensor
    kl: Tensor
    clip_share: Tensor
    ratio_max: Tensor


class Algorithm(Protocol):
    """Advantages of a group's trajectories, and the loss of a batch of them."""

    @property
    def needs_reference(self) -> bool:
        """Whether `loss` wants the log-probs of another model: a frozen copy, or a teacher."""
        ...

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a trajectory of advantage 0 has a loss (a KL term) all the same."""
        ...

    def advantages(self, group: Group) -> list[float]:
        """One factor for each of `group.trajectories`; 0 for those that teach nothing."""
        ...

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """The loss, a scalar that sums over micro-batches to the iteration's, and its statistics."""
        ...
