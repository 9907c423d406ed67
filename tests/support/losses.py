"""One small batch for the losses, with numbers worked out by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from rti_exp.types import Group
from tests.support.trajectories import group, trajectory, turn


@dataclass
class Inputs:
    loss_mask_BT: Tensor
    behaviour_log_probs_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    authors_BT: Tensor
    total_trained_tokens: int


INPUTS = Inputs(
    loss_mask_BT=torch.tensor([[False, True, True]]),
    behaviour_log_probs_BT=torch.tensor([[0.0, -1.0, -1.0]]),
    advantages_BT=torch.tensor([[0.0, 2.0, 2.0]]),
    weights_BT=torch.tensor([[1.0, 1.5, 1.0]]),
    authors_BT=torch.tensor([[0, 2, 1]]),
    total_trained_tokens=4,
)


def members(*rewards: float) -> Group:
    return group([trajectory([turn([1], [2])], member=i, reward=reward) for i, reward in enumerate(rewards)])


def inputs(**changes: object) -> Inputs:
    return dataclasses.replace(INPUTS, **changes)  # pyright: ignore[reportArgumentType]
