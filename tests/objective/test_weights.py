from __future__ import annotations

import math

import pytest
import torch

from rti_exp.objective.weights import correction_weights

INF = math.inf


def weights(calibration: list[float], rollout: list[float], eps_cal: float) -> list[float]:
    return correction_weights(
        torch.tensor(calibration, dtype=torch.float64), torch.tensor(rollout, dtype=torch.float64), eps_cal
    ).tolist()


def test_ratio_inside_the_clip_range() -> None:
    # log(0.6 / 0.5) and log(0.4 / 0.5): a token that the correction prompt makes likelier weighs more.
    result = weights([math.log(0.6), math.log(0.4)], [math.log(0.5)] * 2, 0.5)
    assert result == pytest.approx([1.2, 0.8], rel=1e-14)


def test_clipped_on_both_sides() -> None:
    assert weights([0.0, -9.0], [-9.0, 0.0], 0.2) == [1.2, 0.8]


def test_eps_one_reaches_from_zero_to_two() -> None:
    assert weights([-INF, 0.0], [0.0, -INF], 1.0) == [0.0, 2.0]


@pytest.mark.parametrize("pair", [(-1.0, -2.0), (-2.0, -1.0), (-1e30, 0.0), (-INF, -1.0), (-1.0, -INF)])
def test_eps_zero_is_exactly_one(pair: tuple[float, float]) -> None:
    assert weights([pair[0]], [pair[1]], 0.0) == [1.0]


@pytest.mark.parametrize("eps_cal", [0.0, 0.2, 0.5, 1.0])
def test_extreme_log_probs_stay_finite_and_in_range(eps_cal: float) -> None:
    extremes = [0.0, -1e-8, -700.0, -1e30, -INF]
    pairs = [(a, b) for a in extremes for b in extremes]
    for weight in weights([a for a, _ in pairs], [b for _, b in pairs], eps_cal):
        assert 1 - eps_cal <= weight <= 1 + eps_cal


def test_equal_log_probs_are_exactly_one() -> None:
    assert weights([-0.3, -INF], [-0.3, -INF], 0.5) == [1.0, 1.0]


def test_detached() -> None:
    calibration_T = torch.tensor([-1.0], requires_grad=True)
    rollout_T = torch.tensor([-1.1], requires_grad=True)
    assert not correction_weights(calibration_T, rollout_T, 0.5).requires_grad


def test_no_tokens() -> None:
    assert weights([], [], 0.5) == []


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(1,\) and \(2,\)"):
        weights([-1.0], [-1.0, -1.0], 0.5)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        weights([math.nan], [-1.0], 0.5)


@pytest.mark.parametrize("eps_cal", [-0.1, 1.1, math.nan])
def test_eps_out_of_range_is_refused(eps_cal: float) -> None:
    with pytest.raises(ValueError, match="eps_cal"):
        weights([-1.0], [-1.0], eps_cal)
