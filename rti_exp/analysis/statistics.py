"""Estimates with intervals over seeds and tasks: pure functions of score matrices.

Axes: S seeds, N tasks, R bootstrap resamples. A score matrix `values_SN` has one number per seed and task (a pass@k
estimate). NaN marks a task that the seed did not evaluate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
BOOTSTRAP_SEED = 20_261_013
MOST_SEEDS = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores [S, N] with the seeds of their rows and the tasks of their columns."""

    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    values_SN: Floats

    def __post_init__(self) -> None:
        if self.values_SN.shape != (len(self.seeds), len(self.tasks)):
            raise ValueError(f"scores {self.values_SN.shape}: {len(self.seeds)} seeds, {len(self.tasks)} tasks")

    def select_seeds(self, seeds: Sequence[int]) -> Scores:
        rows = [self.seeds.index(seed) for seed in seeds]
        return Scores(seeds=tuple(seeds), tasks=self.tasks, values_SN=self.values_SN[rows])

    def select_tasks(self, tasks: Sequence[str]) -> Scores:
        columns = [self.tasks.index(task) for task in tasks]
        return Scores(seeds=self.seeds, tasks=tuple(tasks), values_SN=self.values_SN[:, columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95% percentile interval. NaN without scores."""

    value: float
    low: float
    high: float
    seeds: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of one arm minus mean of another. `paired`: each resample draws the same seeds and tasks for both arms."""

    value: float
    low: float
    high: float
    paired: bool
    seeds: int
    tasks: int
    seed_differences: tuple[float, ...]
    """One per shared seed; empty if unpaired."""


def mean_score(values_SN: Floats) -> float:
    """Mean over seeds of each seed's mean over its tasks; NaN without scores."""
    seen_SN = ~np.isnan(values_SN)
    if values_SN.size == 0 or not seen_SN.any(axis=1).all():
        return math.nan
    return float(np.nanmean(values_SN, axis=1).mean())


def _shared_task_means(values_SN: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Each seed's mean [R, S] over one task draw shared by all seeds; NaN if the draw has none of the seed's tasks."""
    tasks = values_SN.shape[1]
    counts_RN = rng.multinomial(tasks, np.full(tasks, 1 / tasks), size=resamples)
    seen_RS = counts_RN @ (~np.isnan(values_SN)).T
    totals_RS = counts_RN @ np.nan_to_num(values_SN).T
    return np.divide(totals_RS, seen_RS, out=np.full(totals_RS.shape, np.nan), where=seen_RS > 0)


def bootstrap_means(values_SN: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Floats:
    """Resampled means [R] of scores [S, N], in which every seed has at least one task.

    Seeds are drawn first, then tasks. Where seeds share tasks, the task is a cluster: one task draw applies to every
    drawn seed, since a hard task is hard under each seed. Where no task is shared, each drawn seed draws from its own
    tasks. With one seed, only tasks are resampled.

    Multinomial counts replace the draws. The distribution is exactly the same, without an [R, S, N] array.
    """
    seeds = len(values_SN)
    seen_SN = ~np.isnan(values_SN)
    seed_counts_RS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    if (seen_SN.sum(axis=0) > 1).any() or seeds == 1:
        means_RS = _shared_task_means(values_SN, rng, resamples)
        weights_RS = seed_counts_RS * ~np.isnan(means_RS)
        weights_R = weights_RS.sum(axis=1)
        # Draws without a scored task have no mean. They are rare and are dropped.
        return (weights_RS * np.nan_to_num(means_RS)).sum(axis=1)[weights_R > 0] / weights_R[weights_R > 0]
    totals_R = np.zeros(resamples)
    for seed, row_N in enumerate(values_SN):
        scored_N = row_N[~np.isnan(row_N)]
        # A seed drawn m times draws m independent sets of n tasks: m * n draws in all.
        counts_RN = rng.multinomial(seed_counts_RS[:, seed] * len(scored_N), np.full(len(scored_N), 1 / len(scored_N)))
        totals_R += counts_RN @ scored_N / len(scored_N)
    return totals_R / seeds


def _interval(means_R: Floats) -> tuple[float, float]:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means_R, [tail, 100 - tail])
    return float(low), float(high)


def estimate(scores: Scores, resamples: int = RESAMPLES) -> Estimate:
    """The mean of `scores` with its interval. Deterministic."""
    value = mean_score(scores.values_SN)
    seeds, tasks = scores.values_SN.shape
    if math.isnan(value):
        return Estimate(value=value, low=math.nan, high=math.nan, seeds=seeds, tasks=tasks)
    means_R = bootstrap_means(scores.values_SN, np.random.default_rng(BOOTSTRAP_SEED), resamples)
    low, high = _interval(means_R)
    return Estimate(value=value, low=low, high=high, seeds=seeds, tasks=tasks)


def _paired_values(first: Scores, second: Scores) -> tuple[tuple[int, ...], Floats] | None:
    """Shared seeds and their differences [S, N], NaN where an arm lacks a score; None if the arms cannot be paired."""
    seeds = tuple(seed for seed in first.seeds if seed in second.seeds)
    if not seeds or set(first.tasks) != set(second.tasks):
        return None
    first, second = first.select_seeds(seeds), second.select_seeds(seeds).select_tasks(first.tasks)
    return seeds, first.values_SN - second.values_SN


def difference(first: Scores, second: Scores, resamples: int = RESAMPLES) -> Difference:
    """Mean of `first` minus mean of `second` with its interval.

    If both evaluated the same tasks and share seeds, the difference is paired over the shared seeds: common effects of
    seed and task cancel. Otherwise the arms are resampled separately and `paired` is False.
    """
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    pairs = _paired_values(first, second)
    if pairs is not None and not math.isnan(mean_score(pairs[1])):
        seeds, values_SN = pairs
        low, high = _interval(bootstrap_means(values_SN, rng, resamples))
        return Difference(
            value=mean_score(values_SN),
            low=low,
            high=high,
            paired=True,
            seeds=len(seeds),
            tasks=values_SN.shape[1],
            seed_differences=tuple(float(value) for value in np.nanmean(values_SN, axis=1)),
        )
    seeds, tasks = min(len(first.seeds), len(second.seeds)), min(len(first.tasks), len(second.tasks))
    value = mean_score(first.values_SN) - mean_score(second.values_SN)
    low = high = math.nan
    if not math.isnan(value):
        means = [bootstrap_means(scores.values_SN, rng, resamples) for scores in (first, second)]
        count = min(len(means_R) for means_R in means)
        low, high = _interval(means[0][:count] - means[1][:count])
    return Difference(
        value=value,
        low=low,
        high=high,
        paired=False,
        seeds=seeds,
        tasks=tasks,
        seed_differences=(),
    )


def interquartile_mean(values_S: Sequence[float]) -> float:
    """Mean of the middle half of `values_S`; observations at its edges count in part.

    Defined for any number of seeds: [0, 3, 9] gives (0.25 * 0 + 3 + 0.25 * 9) / 1.5. NaN without values. Recommended
    over the mean by Agarwal et al. 2021 (arXiv 2108.13264), who round to whole observations.
    """
    ordered = np.sort(np.asarray(values_S, dtype=np.float64))
    count = len(ordered)
    if count == 0:
        return math.nan
    positions = np.arange(count)
    weights = np.clip(np.minimum(positions + 1, 0.75 * count) - np.maximum(positions, 0.25 * count), 0, None)
    return float((weights * ordered).sum() / weights.sum())


def probability_of_improvement(first_S: Sequence[float], second_S: Sequence[float]) -> float:
    """Share of seed pairs (one seed of each arm) in which `first` is higher; ties count half. NaN without pairs."""
    if not len(first_S) or not len(second_S):
        return math.nan
    gaps = np.subtract.outer(np.asarray(first_S, dtype=np.float64), np.asarray(second_S, dtype=np.float64))
    return float((gaps > 0).mean() + 0.5 * (gaps == 0).mean())


def seeds_needed(seed_differences: Sequence[float], effect: float, power: float = 0.8) -> int | None:
    """Paired seeds that a two-sided t-test (level 0.05) needs to detect `effect` with probability `power`.

    The spread is the sample standard deviation of `seed_differences`. None for fewer than two differences, or if more
    than 1,000 seeds would be needed. At least 2, since one seed shows no spread.

    Raises:
        ValueError: `effect` is not positive.
    """
    from scipy import stats

    if effect <= 0:
        raise ValueError(f"effect={effect}: must be > 0")
    if len(seed_differences) < 2:
        return None
    spread = float(np.std(np.asarray(seed_differences, dtype=np.float64), ddof=1))
    if spread == 0.0:
        return 2
    counts = np.arange(2, MOST_SEEDS + 1)
    critical = stats.t.ppf(1 - (1 - LEVEL) / 2, counts - 1)
    noncentrality = effect / spread * np.sqrt(counts)
    reached = stats.nct.sf(critical, counts - 1, noncentrality)
    # scipy returns NaN far out in the tail, where the comparison alone decides.
    reached = np.where(np.isnan(reached), noncentrality > critical, reached)
    enough = np.flatnonzero(reached >= power)
    return int(counts[enough[0]]) if len(enough) else None
