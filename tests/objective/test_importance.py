"""Truncated importance weights, against hand-computed numbers."""

import math

import pytest
import torch

from rti_exp.objective.importance import truncated_importance_weights


def log(*probabilities: float) -> torch.Tensor:
    return torch.tensor([math.log(probability) for probability in probabilities], dtype=torch.float64)


def test_hand_computed_weights():
    # Ratios .5/.25 = 2, .3/.4 = .75, .2/.2 = 1, .9/.1 = 9.
    scorer, sampler = log(0.5, 0.3, 0.2, 0.9), log(0.25, 0.4, 0.2, 0.1)
    for cap, expected in (
        (math.inf, [2.0, 0.75, 1.0, 9.0]),
        (2.0, [2.0, 0.75, 1.0, 2.0]),
        (0.8, [0.8, 0.75, 0.8, 0.8]),
    ):
        weights = truncated_importance_weights(scorer, sampler, cap)
        assert weights.tolist() == pytest.approx(expected, rel=1e-12)
        assert weights.max() <= cap


def test_equal_log_probs_give_weight_one_without_gradient():
    scorer = log(0.123, 0.456).requires_grad_()
    weights = truncated_importance_weights(scorer, scorer.detach().clone(), 2.0)
    assert weights.tolist() == [1.0, 1.0]
    assert not weights.requires_grad


def test_extremes_do_not_overflow_below_a_cap():
    far = torch.tensor([-1.0, -5000.0], dtype=torch.float64)
    assert truncated_importance_weights(far, far.flip(0), 3.0).tolist() == [3.0, 0.0]
    assert truncated_importance_weights(torch.zeros(0), torch.zeros(0), 3.0).tolist() == []


@pytest.mark.parametrize(
    ("scorer", "sampler", "cap", "message"),
    [
        (log(0.5), log(0.5, 0.5), 2.0, "both must be"),
        (log(0.5)[None], log(0.5)[None], 2.0, "both must be"),
        (torch.tensor([1]), torch.tensor([1]), 2.0, "floating point"),
        (log(0.5), log(0.5), 0.0, "must be > 0"),
        (log(0.5), log(0.5), math.nan, "must be > 0"),
        (torch.tensor([-math.inf]), torch.tensor([-1.0]), 2.0, "not finite"),
        (torch.tensor([-1.0]), torch.tensor([math.nan]), 2.0, "not finite"),
    ],
)
def test_invalid_arguments_are_refused(scorer, sampler, cap, message):
    with pytest.raises(ValueError, match=message):
        truncated_importance_weights(scorer, sampler, cap)
