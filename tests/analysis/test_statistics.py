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


def test_one_seed_resamples_tasks_only() -> None:
    # The mean of 8 tasks of which 4 succeed, resampled, is Binomial(8, 1/2) / 8.
    mean = estimate(scores([[1, 1, 1, 1, 0, 0, 0, 0]]), resamples=20_000)
    assert (mean.value, mean.seeds, mean.tasks) == (0.5, 1, 8)
    assert mean.low == stats.binom.ppf(0.025, 8, 0.5) / 8 == 0.125
    assert mean.high == 0.875


@pytest.mark.parametrize(
    ("values", "means", "chances"),
    [
        pytest.param([[0, 0], [1, 1]], [0, 0.5, 1], [0.25, 0.5, 0.25], id="seeds differ, tasks do not"),
        # Both seeds fail task 0 and solve task 1: only the task draw matters, so half of the means are .5.
        pytest.param([[0, 1], [0, 1]], [0, 0.5, 1], [0.25, 0.5, 0.25], id="a shared task is one cluster"),
        # The same scores on four different tasks: two independent draws of two, Binomial(4, 1/2) / 4.
        pytest.param(
            [[0, 1, NAN, NAN], [NAN, NAN, 0, 1]],
            [0, 0.25, 0.5, 0.75, 1],
            stats.binom.pmf(range(5), 4, 0.5),
            id="unshared tasks are drawn within each seed",
        ),
    ],
)
def test_bootstrap_means_have_the_exact_distribution(
    values: list[list[float]], means: list[float], chances: list[float]
) -> None:
    resampled = bootstrap_means(np.array(values, dtype=float), np.random.default_rng(0), 40_000)
    distinct, counts = np.unique(resampled, return_counts=True)
    assert distinct.tolist() == means
    np.testing.assert_allclose(counts / 40_000, chances, atol=0.01)


def test_a_task_without_a_score_is_excluded_for_its_seed_only() -> None:
    assert estimate(scores([[1.0, NAN], [0.5, 0.0]])).value == (1.0 + 0.25) / 2
    assert math.isnan(estimate(scores([[NAN]])).value)


def test_intervals_are_reproducible() -> None:
    values = scores(np.random.default_rng(3).random((3, 20)).tolist())
    assert estimate(values) == estimate(values)


@pytest.mark.parametrize("shared", [True, False], ids=["shared tasks", "unshared tasks"])
def test_coverage_is_near_the_nominal_level(shared: bool) -> None:
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
        mean = estimate(scores(values.tolist()), resamples=300)
        hits += mean.low <= 0 <= mean.high
    assert 0.86 <= hits / trials <= 0.99


def test_a_paired_difference_cancels_shared_effects() -> None:
    rng = np.random.default_rng(1)
    common = rng.random((3, 30))
    gap = difference(scores((common + 0.25).tolist()), scores(common.tolist()))
    assert gap.paired
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.25, 0.25, 0.25))
    assert gap.seed_differences == pytest.approx((0.25, 0.25, 0.25))


def test_differences_pair_shared_seeds_in_any_task_order() -> None:
    first = scores([[1.0, 0.0], [0.5, 0.5]], seeds=[1, 2], tasks=["a", "b"])
    second = scores([[0.0, 0.5], [0.0, 0.0]], seeds=[2, 7], tasks=["b", "a"])
    gap = difference(first, second)
    assert (gap.paired, gap.seeds, gap.tasks) == (True, 1, 2)
    assert gap.value == ((0.5 - 0.5) + (0.5 - 0.0)) / 2
    same = difference(scores([[1.0, 0.0]], tasks=["a", "b"]), scores([[0.0, 1.0]], tasks=["b", "a"]))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "second",
    [scores([[0.0, 0.0]], seeds=[5]), scores([[0.0, 0.0]], seeds=[0], tasks=["other", "t1"])],
    ids=["other seeds", "other tasks"],
)
def test_arms_without_shared_seeds_and_tasks_are_not_paired(second: Scores) -> None:
    gap = difference(scores([[1.0, 0.0]], seeds=[0]), second)
    assert not gap.paired
    assert gap.seed_differences == ()
    assert (gap.value, gap.low, gap.high) == (0.5, 0.0, 1.0)


def test_the_interquartile_mean_counts_edges_in_part() -> None:
    assert interquartile_mean([9, 0, 3]) == (0.25 * 0 + 3 + 0.25 * 9) / 1.5
    assert interquartile_mean([0, 1, 2, 100]) == 1.5
    assert interquartile_mean([4.0]) == 4.0
    assert math.isnan(interquartile_mean([]))


def test_probability_of_improvement_counts_ties_half() -> None:
    assert probability_of_improvement([1.0, 0.5], [0.5, 0.0]) == (1 + 1 + 0.5 + 1) / 4
    assert math.isnan(probability_of_improvement([], [0.5]))


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 10), (0.8, 15), (0.5, 34)])
def test_seeds_needed_agrees_with_the_standard_table(effect: float, seeds: int) -> None:
    spread_one = [-1 / math.sqrt(2), 1 / math.sqrt(2)]
    assert seeds_needed(spread_one, effect) == seeds


def test_seeds_needed_at_the_edges() -> None:
    assert seeds_needed([0.1], 0.05) is None
    assert seeds_needed([0.1, 0.1], 0.05) == 2
    assert seeds_needed([-10, 10], 0.05) is None
    assert seeds_needed([0.1, 0.1 + 1e-9], 0.05) == 2
    with pytest.raises(ValueError, match="effect=0"):
        seeds_needed([0.1, 0.2], 0)


def test_scores_must_fit_their_names() -> None:
    with pytest.raises(ValueError, match="2 seeds, 1 tasks"):
        Scores(seeds=(0, 1), tasks=("a",), values_SN=np.zeros((1, 1)))
