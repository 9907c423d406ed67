"""The interface of a learning algorithm. GRPO, LUFFY, OPD and SFT implement it, one file each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rti_exp.types import Group


class LossInputs(Protocol):
    """The fields of a batch that a loss reads: [B, T] tensors, and the trained tokens of the whole iteration."""

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
        """Whether `loss` needs the log-probs of another model: a frozen copy or a teacher."""
        ...

    @property
    def trains_without_advantage(self) -> bool:
        """Whether a trajectory with advantage 0 still contributes to the loss (through a KL term)."""
        ...

    def advantages(self, group: Group) -> list[float]:
        """One advantage for each of `group.trajectories`; a trajectory with advantage 0 is not trained."""
        ...

    def loss(
        self, log_probs_BT: Tensor, batch: LossInputs, reference_log_probs_BT: Tensor | None = None
    ) -> tuple[Tensor, LossStats]:
        """The loss and its statistics. The losses of the micro-batches add up to the iteration's loss."""
        ...
