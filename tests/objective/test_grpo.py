from __future__ import annotations

import math

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings, Baseline
from rti_exp.objective.grpo import GRPO
from tests.support.losses import INPUTS, members
from tests.support.trajectories import group, trajectory, turn


def test_advantages_of_a_group() -> None:
    algorithm = GRPO(default_settings(AlgorithmSettings, advantage_eps=0.0))
    assert algorithm.advantages(members(1.0, math.nan, 0.0, 0.0, 0.0)) == [1.5, 0.0, -0.5, -0.5, -0.5]


def test_advantages_follow_the_settings() -> None:
    algorithm = GRPO(default_settings(AlgorithmSettings, normalize_std=False, baseline=Baseline.leave_one_out))
    assert algorithm.advantages(members(3.0, 0.0, 0.0)) == pytest.approx([3.0, -1.5, -1.5], abs=1e-12)


def test_advantages_are_of_the_merged_trajectories() -> None:
    failed = [trajectory([turn([1], [2])], member=i) for i in range(2)]
    child = trajectory([turn([1], [3])], member=1, reward=1.0, fork=(1, 0), weights=[1.0])
    algorithm = GRPO(default_settings(AlgorithmSettings, normalize_std=False))
    assert algorithm.advantages(group(failed, [failed[0], child])) == [-0.5, 0.5]


def test_loss() -> None:
    # Ratios e^0.1 (inside the clip range) and 1: -(1.5 * e^0.1 * 2 + 1 * 2) / 4.
    loss, stats = GRPO(default_settings(AlgorithmSettings)).loss(torch.tensor([[0.0, -0.9, -1.0]]), INPUTS)
    assert loss.item() == pytest.approx(-(3 * math.exp(0.1) + 2) / 4, rel=1e-6)
    assert stats.policy.item() == loss.item()
    assert stats.kl.item() == 0.0
    assert stats.ratio_max.item() == pytest.approx(math.exp(0.1), rel=1e-6)


def test_loss_with_a_reference() -> None:
    reference_BT = torch.tensor([[0.0, math.log(2) - 1.0, -1.0]])
    loss, stats = GRPO(default_settings(AlgorithmSettings, beta=0.5)).loss(
        torch.tensor([[0.0, -1.0, -1.0]]), INPUTS, reference_BT
    )
    assert stats.kl.item() == pytest.approx((1 - math.log(2)) / 4, rel=1e-6)
    assert loss.item() == pytest.approx(-(3 + 2) / 4 + 0.5 * (1 - math.log(2)) / 4, rel=1e-6)


def test_beta_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="reference"):
        GRPO(default_settings(AlgorithmSettings, beta=0.5)).loss(torch.zeros(1, 3), INPUTS)
