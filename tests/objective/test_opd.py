from __future__ import annotations

import math

import pytest
import torch

from rti_exp.config.algorithm_settings import DistillationSettings
from rti_exp.config.defaults import default_settings
from rti_exp.objective.opd import OPD
from tests.support.losses import INPUTS, inputs, members

ONES = torch.tensor([[0.0, 1.0, 1.0]])


def test_valid_trajectories_count_equally_with_any_reward() -> None:
    assert OPD(default_settings(DistillationSettings)).advantages(members(1.0, 0.0, math.nan, 0.5)) == [1, 1, 0, 1]


def test_loss() -> None:
    # Advantages of the two tokens: 0.5 and -2; ratios e^0.1 and 1; nothing is clipped.
    batch = inputs(advantages_BT=ONES, weights_BT=torch.ones(1, 3))
    log_probs_BT = torch.tensor([[0.0, -0.9, -1.0]], requires_grad=True)
    teacher_BT = torch.tensor([[-4.0, -0.5, -3.0]])
    loss, stats = OPD(default_settings(DistillationSettings)).loss(log_probs_BT, batch, teacher_BT)
    assert loss.item() == pytest.approx(-(math.exp(0.1) * 0.5 - 2) / 4, rel=1e-6)
    assert stats.kl.item() == pytest.approx((-0.5 + 2) / 4)
    loss.backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad[0].tolist() == pytest.approx([0.0, -math.exp(0.1) * 0.5 / 4, 2 / 4], rel=1e-5)


def test_no_gradient_if_the_teacher_agrees() -> None:
    batch = inputs(advantages_BT=ONES)
    log_probs_BT = torch.tensor([[0.0, -0.9, -1.0]], requires_grad=True)
    loss, stats = OPD(default_settings(DistillationSettings)).loss(log_probs_BT, batch, INPUTS.behaviour_log_probs_BT)
    loss.backward()
    assert (loss.item(), stats.kl.item()) == (0.0, 0.0)
    assert log_probs_BT.grad is not None
    assert not log_probs_BT.grad.any()


def test_missing_teacher_log_probs_are_refused() -> None:
    with pytest.raises(ValueError, match="needs the teacher's log-probs"):
        OPD(default_settings(DistillationSettings)).loss(torch.zeros(1, 3), INPUTS)
