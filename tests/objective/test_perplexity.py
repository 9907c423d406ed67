from __future__ import annotations

import math

import pytest

from rti_exp.objective.perplexity import log_perplexity, passes_gate


def test_log_perplexity_is_the_mean_negative_log_prob() -> None:
    assert log_perplexity([-1.0, -2.0, -6.0]) == 3.0
    assert log_perplexity((math.log(0.25), math.log(0.25))) == pytest.approx(math.log(4), rel=1e-15)


def test_log_perplexity_of_certain_tokens_is_zero() -> None:
    assert log_perplexity([0.0, 0.0]) == 0.0


def test_an_impossible_token_gives_infinity_and_nan_stays_nan() -> None:
    assert log_perplexity([-1.0, -math.inf]) == math.inf
    assert math.isnan(log_perplexity([-1.0, math.nan]))


def test_log_perplexity_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        log_perplexity([])


@pytest.mark.parametrize(
    ("perplexity", "delta", "passes"),
    [
        (4.999, 5.0, True),
        (5.001, 5.0, False),
        (1.0, 1.0, True),
        (1.0, 0.0, False),
        (1.0, 0.999, False),
        (1e300, math.inf, True),
        (1e300, 1e299, False),
        (math.inf, math.inf, True),
        (math.inf, 1e308, False),
    ],
)
def test_gate(perplexity: float, delta: float, passes: bool) -> None:
    assert passes_gate(math.log(perplexity), delta) is passes


def test_gate_accepts_perplexities_that_overflow() -> None:
    assert passes_gate(5000.0, math.inf)
    assert not passes_gate(5000.0, 1e308)


def test_gate_equality_passes() -> None:
    assert passes_gate(math.log(5.0), 5.0)


@pytest.mark.parametrize("delta", [0.0, 5.0, math.inf])
def test_nan_never_passes(delta: float) -> None:
    assert not passes_gate(math.nan, delta)


@pytest.mark.parametrize("delta", [0.0, 0.5, math.nextafter(1.0, 0.0)])
def test_delta_below_one_never_opens_even_for_log_probs_above_zero_by_rounding(delta: float) -> None:
    assert not passes_gate(-1e-6, delta)


@pytest.mark.parametrize("delta", [math.nan, -1.0])
def test_invalid_delta_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        passes_gate(1.0, delta)
