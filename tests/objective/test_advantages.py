from __future__ import annotations

import math

import pytest
import torch

from rti_exp.config.settings import Baseline
from rti_exp.objective.advantages import advantages_from_members, group_advantages

NAN = math.nan


def advantages(
    rewards: list[float],
    *,
    baseline: Baseline = Baseline.mean,
    normalize_std: bool = True,
    eps: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> list[float]:
    rewards_G = torch.tensor(rewards, dtype=dtype)
    return group_advantages(rewards_G, baseline=baseline, normalize_std=normalize_std, eps=eps).tolist()


def test_sample_standard_deviation() -> None:
    # mean 0.25, deviations (0.75, -0.25 x 3), sample variance (0.5625 + 3 * 0.0625) / 3 = 0.25, std 0.5.
    assert advantages([1, 0, 0, 0]) == [1.5, -0.5, -0.5, -0.5]


def test_eps_is_added_to_the_standard_deviation() -> None:
    assert advantages([1, 0, 0, 0], eps=0.5) == [0.75, -0.25, -0.25, -0.25]


def test_without_normalisation() -> None:
    assert advantages([1, 0, 0, 0], normalize_std=False) == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out() -> None:
    # 1 - mean(0, 0, 0); 0 - mean(1, 0, 0).
    result = advantages([1, 0, 0, 0], baseline=Baseline.leave_one_out, normalize_std=False)
    assert result == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3], abs=1e-15)


def test_leave_one_out_with_graded_rewards() -> None:
    # 3 - mean(0, 0); 0 - mean(3, 0).
    result = advantages([3, 0, 0], baseline=Baseline.leave_one_out, normalize_std=False)
    assert result == pytest.approx([3, -1.5, -1.5], abs=1e-15)


def test_invalid_members_are_excluded_from_the_statistics() -> None:
    assert advantages([1, NAN, 0, 0, 0]) == [1.5, 0, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("baseline", list(Baseline))
@pytest.mark.parametrize("normalize_std", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "rewards",
    [
        [0.0] * 4,
        [1.0] * 4,
        [0.1] * 3,
        [0.1] * 7,
        [0.1 + 0.2, 0.3, 0.3],
        [1.0, NAN, NAN, NAN],
        [NAN, NAN],
        [0.7],
        [NAN, 0.1, 0.1, 0.1],
        [-1e9 / 3] * 3,
    ],
)
def test_no_signal_is_exactly_zero(
    rewards: list[float], baseline: Baseline, normalize_std: bool, eps: float, dtype: torch.dtype
) -> None:
    result = advantages(rewards, baseline=baseline, normalize_std=normalize_std, eps=eps, dtype=dtype)
    assert result == [0.0] * len(rewards)


def test_a_small_real_difference_is_signal() -> None:
    assert advantages([0.5, 0.5 + 1e-9], normalize_std=False) == pytest.approx([-5e-10, 5e-10], rel=1e-6)


def test_dtype_is_kept() -> None:
    result = group_advantages(torch.tensor([1.0, 0.0]), baseline=Baseline.mean, normalize_std=True, eps=0.0)
    assert result.dtype is torch.float32


@pytest.mark.parametrize("rewards_G", [torch.tensor([[1.0, 0.0]]), torch.tensor([1, 0]), torch.tensor(1.0)])
def test_wrong_shape_or_dtype_is_refused(rewards_G: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a floating"):
        group_advantages(rewards_G, baseline=Baseline.mean, normalize_std=True, eps=0.0)


def test_infinite_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="infinite reward"):
        advantages([1.0, math.inf])


def from_members(rewards: list[float], members: list[bool]) -> list[float]:
    return advantages_from_members(torch.tensor(rewards, dtype=torch.float64), torch.tensor(members)).tolist()


def test_baseline_of_some_members() -> None:
    # Own rewards 1, 0, 0, mean 1/3; the teacher's 1 is not in it.
    third = 1 / 3
    assert from_members([1, 0, 0, 1], [True, True, True, False]) == pytest.approx(
        [2 * third, -third, -third, 2 * third], abs=1e-12
    )


def test_members_that_equal_their_baseline_have_no_signal() -> None:
    assert from_members([0, 0, 0, 1], [True, True, True, False]) == [0, 0, 0, 1]
    assert from_members([0.1, 0.1, 0.1, 0], [True, True, True, False]) == [0, 0, 0, -0.1]


def test_invalid_members_are_excluded_from_the_baseline() -> None:
    assert from_members([1, NAN, 0, NAN, 1], [True, True, True, False, False]) == [0.5, 0, -0.5, 0, 0.5]
    assert from_members([NAN, NAN, 1, 0], [True, True, False, False]) == [0, 0, 0, 0]
    assert from_members([1, 1, 1], [True, True, False]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("rewards_G", "baseline_G", "message"),
    [
        (torch.ones(2), torch.ones(2), "a bool"),
        (torch.ones(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), "a floating"),
        (torch.ones(2), torch.ones(3, dtype=torch.bool), "shapes differ"),
        (torch.tensor([1.0, math.inf]), torch.ones(2, dtype=torch.bool), "infinite reward"),
    ],
)
def test_wrong_members_are_refused(rewards_G: torch.Tensor, baseline_G: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advantages_from_members(rewards_G, baseline_G)
