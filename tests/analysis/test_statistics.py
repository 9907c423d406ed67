from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rti_exp.analysis.statistics import (
    Scores,
    bootstrap_means,
    difference,
    estimate,
    interquartile_mean,
    pass_at_k,
    probability_of_improvement,
    seeds_needed,
)

NAN = math.nan


def scores(values: list[list[float]], seeds: list[int] | None = None, tasks: list[str] | None = None) -> Scores:
    return Scores(
        seeds=tuple(seeds or range(len(values))),
        tasks=tuple(tasks or [f"t{place}" for place in range(len(values[0]))]),
        values_SN=np.array(values, dtype=float),
    )


def test_pass_at_k_is_the_unbiased_estimator():
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)


def test_one_seed_resamples_tasks_only():
    # The mean of 8 tasks of which 4 succeed, resampled, is Binomial(8, 1/2) / 8.
    found = estimate(scores([[1, 1, 1, 1, 0, 0, 0, 0]]), resamples=20_000)
    assert (found.value, found.method, found.seeds, found.tasks) == (0.5, "tasks only", 1, 8)
    assert found.low == stats.binom.ppf(0.025, 8, 0.5) / 8 == 0.125
    assert found.high == 0.875


def test_seeds_are_resampled_even_if_tasks_do_not_vary():
    # Two seeds, 0 and 1: the resampled mean is 0, .5, 1 with chance 1/4, 1/2, 1/4.
    means = bootstrap_means(np.array([[0.0, 0.0], [1.0, 1.0]]), np.random.default_rng(0), 40_000)
    values, counts = np.unique(means, return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(counts / 40_000, [0.25, 0.5, 0.25], atol=0.01)


def test_shared_tasks_are_one_cluster_over_seeds():
    # Both seeds fail task 0 and solve task 1: only the task draw matters, so half of the means are .5.
    means = bootstrap_means(np.array([[0.0, 1.0], [0.0, 1.0]]), np.random.default_rng(0), 40_000)
    values, counts = np.unique(means, return_counts=True)
    assert values.tolist() == [0.0, 0.5, 1.0]
    np.testing.assert_allclose(counts / 40_000, [0.25, 0.5, 0.25], atol=0.01)


def test_unshared_tasks_are_drawn_within_each_seed():
    # The same scores on four different tasks: two independent draws of two, Binomial(4, 1/2) / 4.
    values = np.array([[0.0, 1.0, NAN, NAN], [NAN, NAN, 0.0, 1.0]])
    means = bootstrap_means(values, np.random.default_rng(0), 40_000)
    found, counts = np.unique(means, return_counts=True)
    assert found.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(counts / 40_000, stats.binom.pmf(range(5), 4, 0.5), atol=0.01)


def test_a_task_without_score_is_left_out_of_its_seed_only():
    found = estimate(scores([[1.0, NAN], [0.5, 0.0]]))
    assert found.value == (1.0 + 0.25) / 2


def test_no_scores_give_nan():
    assert math.isnan(estimate(scores([[NAN]])).value)
    assert estimate(scores([[NAN]])).method == "none"


def test_intervals_are_reproducible():
    values = scores(np.random.default_rng(3).random((3, 20)).tolist())
    assert estimate(values) == estimate(values)


@pytest.mark.parametrize("shared", [True, False], ids=["shared tasks", "own tasks"])
def test_coverage_is_near_the_nominal_level(shared: bool):
    rng = np.random.default_rng(7)
    seeds, tasks, trials, hits = 10, 25, 200, 0
    for _ in range(trials):
        values = rng.normal(0, 0.2, (seeds, 1)) + rng.normal(0, 0.1, (seeds, tasks))
        if shared:
            values = values + rng.normal(0, 0.5, (1, tasks))
        else:
            wide = np.full((seeds, seeds * tasks), NAN)
            for seed in range(seeds):
                wide[seed, seed * tasks : (seed + 1) * tasks] = values[seed] + rng.normal(0, 0.5, tasks)
            values = wide
        found = estimate(scores(values.tolist()), resamples=300)
        hits += found.low <= 0 <= found.high
    assert 0.86 <= hits / trials <= 0.99


def test_paired_difference_cancels_what_arms_share():
    rng = np.random.default_rng(1)
    common = rng.random((3, 30))
    found = difference(scores((common + 0.25).tolist()), scores(common.tolist()))
    assert found.paired
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.seed_differences == pytest.approx((0.25, 0.25, 0.25))


def test_difference_pairs_over_shared_seeds_whatever_the_task_order():
    first = scores([[1.0, 0.0], [0.5, 0.5]], seeds=[1, 2], tasks=["a", "b"])
    second = scores([[0.0, 0.5], [0.0, 0.0]], seeds=[2, 7], tasks=["b", "a"])
    found = difference(first, second)
    assert (found.paired, found.seeds, found.tasks, found.method) == (True, 1, 2, "tasks only")
    assert found.value == ((0.5 - 0.5) + (0.5 - 0.0)) / 2
    same = difference(scores([[1.0, 0.0]], tasks=["a", "b"]), scores([[0.0, 1.0]], tasks=["b", "a"]))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "second",
    [scores([[0.0, 0.0]], seeds=[5]), scores([[0.0, 0.0]], seeds=[0], tasks=["other", "t1"])],
    ids=["other seeds", "other tasks"],
)
def test_difference_says_when_it_is_not_paired(second: Scores):
    found = difference(scores([[1.0, 0.0]], seeds=[0]), second)
    assert not found.paired
    assert found.seed_differences == ()
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_interquartile_mean_counts_edges_in_part():
    assert interquartile_mean([9, 0, 3]) == (0.25 * 0 + 3 + 0.25 * 9) / 1.5
    assert interquartile_mean([0, 1, 2, 100]) == 1.5
    assert interquartile_mean([4.0]) == 4.0
    assert math.isnan(interquartile_mean([]))


def test_probability_of_improvement_counts_ties_half():
    assert probability_of_improvement([1.0, 0.5], [0.5, 0.0]) == (1 + 1 + 0.5 + 1) / 4
    assert math.isnan(probability_of_improvement([], [0.5]))


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 10), (0.8, 15), (0.5, 34)])
def test_seeds_needed_agrees_with_the_standard_table(effect: float, seeds: int):
    spread_one = [-1 / math.sqrt(2), 1 / math.sqrt(2)]
    assert seeds_needed(spread_one, effect) == seeds


def test_seeds_needed_at_the_edges():
    assert seeds_needed([0.1], 0.05) is None
    assert seeds_needed([0.1, 0.1], 0.05) == 2
    assert seeds_needed([-10, 10], 0.05) is None
    assert seeds_needed([0.1, 0.1 + 1e-9], 0.05) == 2
    with pytest.raises(ValueError, match="effect=0"):
        seeds_needed([0.1, 0.2], 0)


def test_scores_must_fit_their_names():
    with pytest.raises(ValueError, match="2 seeds, 1 tasks"):
        Scores(seeds=(0, 1), tasks=("a",), values_SN=np.zeros((1, 1)))
