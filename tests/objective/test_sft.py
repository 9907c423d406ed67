from __future__ import annotations

import math

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import UpdateSettings
from rti_exp.objective.sft import SFT
from tests.support.losses import inputs
from tests.support.trajectories import group, trajectory, turn


def test_only_accepted_corrections_count() -> None:
    failed = [trajectory([turn([1], [2])], member=member) for member in range(2)]
    succeeded = trajectory([turn([1], [2])], member=2, reward=1.0)
    child = trajectory([turn([1], [3])], member=1, reward=1.0, fork=(1, 0), weights=[1.0])
    algorithm = SFT(default_settings(UpdateSettings))
    assert algorithm.advantages(group([*failed, succeeded], [failed[0], child, succeeded])) == [0, 1, 0]


def test_loss_is_the_negative_log_likelihood_without_weights() -> None:
    # The weight 1.5 of token 1 is ignored.
    batch = inputs(advantages_BT=torch.tensor([[0.0, 1.0, 1.0]]))
    log_probs_BT = torch.tensor([[0.0, -0.5, -2.0]], requires_grad=True)
    loss, stats = SFT(default_settings(UpdateSettings)).loss(log_probs_BT, batch)
    assert loss.item() == 2.5 / 4
    assert stats.ratio_max.item() == pytest.approx(math.exp(0.5), rel=1e-6)
    loss.backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad[0].tolist() == [0.0, -0.25, -0.25]
