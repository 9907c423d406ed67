from __future__ import annotations

from itertools import combinations

import pytest

from rti_exp.objective.passk import pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("samples", "successes", "k", "at", "hat"),
    [
        (8, 2, 1, 0.25, 0.25),
        (4, 2, 2, 5 / 6, 1 / 6),
        (8, 0, 8, 0.0, 0.0),
        (8, 1, 8, 1.0, 0.0),
        (8, 8, 8, 1.0, 1.0),
        (5, 3, 3, 1.0, 0.1),
    ],
)
def test_hand_computed(samples: int, successes: int, k: int, at: float, hat: float) -> None:
    assert pass_at_k(samples, successes, k) == pytest.approx(at, abs=1e-15)
    assert pass_hat_k(samples, successes, k) == pytest.approx(hat, abs=1e-15)


def test_equals_the_share_of_subsets() -> None:
    for successes in range(7):
        outcomes = [True] * successes + [False] * (6 - successes)
        for k in range(1, 7):
            subsets = list(combinations(outcomes, k))
            assert pass_at_k(6, successes, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)
            assert pass_hat_k(6, successes, k) == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-15)


@pytest.mark.parametrize(("samples", "successes", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0), (0, 0, 1)])
def test_out_of_range_is_refused(samples: int, successes: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(samples, successes, k)
    with pytest.raises(ValueError, match="samples"):
        pass_hat_k(samples, successes, k)
