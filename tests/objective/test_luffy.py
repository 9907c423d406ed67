from __future__ import annotations

import math

import pytest
import torch

from rti_exp.config.algorithm_settings import BaselineMembers, LuffySettings
from rti_exp.config.defaults import default_settings
from rti_exp.objective.grpo import GRPO
from rti_exp.objective.luffy import LUFFY
from rti_exp.types import Author, Group
from tests.support.losses import INPUTS, inputs
from tests.support.trajectories import group, trajectory, turn


def guided(policy: list[float], teacher: list[float]) -> Group:
    """A group whose last members are the teacher's."""
    members = [(reward, Author.POLICY) for reward in policy] + [(reward, Author.TEACHER) for reward in teacher]
    return group(
        [
            trajectory([turn([1], [2], author=author)], member=member, reward=reward)
            for member, (reward, author) in enumerate(members)
        ]
    )


def test_the_mean_of_all_members_is_the_baseline() -> None:
    assert LUFFY(default_settings(LuffySettings)).advantages(guided([0, 0, 0], [1])) == [-0.25, -0.25, -0.25, 0.75]


def test_the_mean_of_the_policys_members_is_the_baseline() -> None:
    algorithm = LUFFY(default_settings(LuffySettings, baseline_members=BaselineMembers.on_policy))
    assert algorithm.advantages(guided([1, 0], [1])) == [0.5, -0.5, 0.5]
    assert algorithm.advantages(guided([0, 0, math.nan], [1])) == [0, 0, 0, 1]


def test_a_trajectory_begun_by_the_teacher_is_not_in_the_policy_baseline() -> None:
    begun = trajectory([turn([1], [2], author=Author.TEACHER), turn([1], [2])], member=2, reward=1.0)
    policy = guided([0, 0], []).trajectories
    algorithm = LUFFY(default_settings(LuffySettings, baseline_members=BaselineMembers.on_policy))
    assert algorithm.advantages(group([*policy, begun])) == [0, 0, 1]


def test_teacher_tokens_use_the_shaped_loss_and_policy_tokens_the_ratio() -> None:
    # Token 1 is the policy's: ratio e^0.5, unclipped, advantage 2. Token 2 is the teacher's: p = 0.1, f = 1/2.
    batch = inputs(authors_BT=torch.tensor([[0, 1, 3]]), weights_BT=torch.ones(1, 3))
    log_probs_BT = torch.tensor([[0.0, -0.5, math.log(0.1)]], requires_grad=True)
    loss, stats = LUFFY(default_settings(LuffySettings, gamma=0.1)).loss(log_probs_BT, batch)
    assert loss.item() == pytest.approx(-(math.exp(0.5) * 2 + 0.5 * 2) / 4, rel=1e-6)
    assert stats.policy.item() == pytest.approx(loss.item())
    assert stats.ratio_max.item() == pytest.approx(math.exp(0.5), rel=1e-6)
    loss.backward()
    assert log_probs_BT.grad is not None
    assert log_probs_BT.grad[0].tolist() == pytest.approx([0.0, -math.exp(0.5) * 2 / 4, -0.25 * 2 / 4], rel=1e-5)


def test_without_a_teachers_token_it_is_grpo_bit_for_bit() -> None:
    settings = default_settings(LuffySettings, clip_low=0.2, clip_high=0.28, beta=0.1, normalize_std=True)
    log_probs_BT = torch.tensor([[0.0, -0.4, -1.3]])
    reference_BT = torch.tensor([[0.0, -0.7, -1.1]])
    found, expected = [
        algorithm.loss(log_probs_BT.clone().requires_grad_(), INPUTS, reference_BT)
        for algorithm in (LUFFY(settings), GRPO(settings))
    ]
    assert found[0].item() == expected[0].item()
    assert {name: getattr(found[1], name).item() for name in found[1].__slots__} == {
        name: getattr(expected[1], name).item() for name in expected[1].__slots__
    }
    plain = guided([1, 0, 0], [])
    assert LUFFY(settings).advantages(plain) == GRPO(settings).advantages(plain)
