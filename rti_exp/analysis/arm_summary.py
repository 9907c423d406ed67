"""Estimates for each arm of a study, computed once from usable runs: tables, charts and the report share them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rti_exp.analysis.statistics import (
    Difference,
    Estimate,
    Scores,
    difference,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)
from rti_exp.analysis.study import Study, select
from rti_exp.objective.passk import pass_at_k
from rti_exp.runs import COMPUTE
from rti_exp.types import Outcome

SPLIT = "heldout"
KS = (1, 8)
OUTCOMES = tuple(outcome.value for outcome in Outcome)
LATER_OUTCOMES = ("role_failed", "no_check")
"""Outcomes that runs of the first version do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSummary:
    """One arm. An estimate is None if no usable run has the evaluations or samples for it."""

    arm: str
    states: dict[str, int]
    """Run directories by state, "missing" included."""
    seeds: tuple[int, ...]
    """Seeds of the usable runs."""
    last_iterations: tuple[int, ...]
    """Distinct iterations of the evaluations behind `passes`."""
    base: Estimate | None
    passes: dict[int, Estimate | None]
    """k -> pass@k at the last evaluation."""
    seed_means: dict[int, tuple[float, ...]]
    """k -> each seed's mean."""
    iqm: dict[int, float]
    families: dict[str, tuple[Estimate | None, Estimate]]
    """family -> pass@1 of the base and at the last evaluation."""
    attempts: float
    outcomes: dict[str, float]
    """Sums over the usable runs; NaN if a run lacks the column."""
    rollouts: float
    lost_rollouts: float
    """Training rollouts, sums over the usable runs: valid ones, and infrastructure failures, which enter no mean."""
    compute: dict[str, float]
    """Means over the usable runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDifference:
    """An arm compared with the baseline arm."""

    arm: str
    passes: dict[int, Difference | None]
    probability_of_improvement: float
    seed_pairs: int
    """Pairs of one seed of each arm behind that probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    arms: tuple[ArmSummary, ...]
    baseline: str | None
    differences: tuple[ArmDifference, ...]


class UnknownArm(Exception):
    """The study has no such arm; the message lists its arms."""


def heldout(study: Study) -> pd.DataFrame:
    """Evaluation rows of usable runs on held-out tasks."""
    return select(study.of_usable(study.evaluations), split=SPLIT)


def at_last(rows: pd.DataFrame) -> pd.DataFrame:
    """Each run's rows of its last evaluation. The evaluation of the base (iteration 0) does not count."""
    trained: Any = rows[rows["iteration"] > 0]
    if trained.empty:
        return trained
    return trained[trained["iteration"] == trained.groupby("run_key")["iteration"].transform("max")]


def scores(rows: pd.DataFrame, k: int) -> Scores | None:
    """pass@k per seed and task, NaN for tasks with fewer than k valid samples; None if a seed has no such task."""
    if rows.empty:
        return None
    counts = zip(rows["samples"].tolist(), rows["successes"].tolist(), strict=True)
    values = pd.Series([pass_at_k(n, c, k) if n >= k else math.nan for n, c in counts], index=rows.index)
    matrix = rows.assign(value=values).pivot(index="seed", columns="task_id", values="value")
    values_SN = matrix.to_numpy(dtype=np.float64)
    if np.isnan(values_SN).all(axis=1).any():
        return None
    return Scores(
        seeds=tuple(int(seed) for seed in matrix.index),
        tasks=tuple(str(task) for task in matrix.columns),
        values_SN=values_SN,
    )


def _estimate(rows: pd.DataFrame, k: int) -> Estimate | None:
    matrix = scores(rows, k)
    return estimate(matrix) if matrix is not None else None


def _seed_means(matrix: Scores | None) -> tuple[float, ...]:
    if matrix is None:
        return ()
    return tuple(float(value) for value in np.nanmean(matrix.values_SN, axis=1))


def _total(metrics: pd.DataFrame, column: str) -> float:
    """Sum of a column; NaN if it is absent or has a gap."""
    return sum(metrics[column].tolist()) if column in metrics else math.nan


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def funnel(metrics: pd.DataFrame) -> tuple[float, dict[str, float]]:
    """Attempts in all and by outcome over train rows; 0 for outcomes that the runs did not count yet."""
    attempts = _total(metrics, "funnel/attempts")
    outcomes = {name: _total(metrics, f"funnel/{name}") for name in OUTCOMES}
    if "funnel/attempts" in metrics:
        outcomes |= {name: 0.0 for name in LATER_OUTCOMES if f"funnel/{name}" not in metrics}
    return attempts, outcomes


def _states(study: Study, arm: str) -> dict[str, int]:
    states = dict(Counter(select(study.runs, arm=arm)["state"].tolist()))
    absent = sum(name == arm for name, _ in study.missing)
    return states | ({"missing": absent} if absent else {})


def _families(rows: pd.DataFrame) -> dict[str, tuple[Estimate | None, Estimate]]:
    last = at_last(rows)
    base = select(rows, iteration=0)
    families = {}
    for family in sorted(set(last["family"].tolist())):
        final = _estimate(select(last, family=family), 1)
        if final is not None:
            families[family] = (_estimate(select(base, family=family), 1), final)
    return families


def summarize_arm(study: Study, arm: str) -> ArmSummary:
    runs = select(study.usable_runs, arm=arm)
    rows = select(heldout(study), arm=arm)
    last = at_last(rows)
    means = {k: _seed_means(scores(last, k)) for k in KS}
    trained = select(study.of_usable(study.metrics), arm=arm)
    attempts, outcomes = funnel(trained)
    return ArmSummary(
        arm=arm,
        states=_states(study, arm),
        seeds=tuple(sorted(int(seed) for seed in runs["seed"].tolist())),
        last_iterations=tuple(sorted(set(last["iteration"].tolist()))),
        base=_estimate(select(rows, iteration=0), 1),
        passes={k: _estimate(last, k) for k in KS},
        seed_means=means,
        iqm={k: interquartile_mean(means[k]) for k in KS},
        families=_families(rows),
        attempts=attempts,
        outcomes=outcomes,
        rollouts=_total(trained, "trajectories/valid"),
        lost_rollouts=_total(trained, "trajectories/infrastructure_failure"),
        compute={name: _mean(runs[name].tolist()) for name in COMPUTE},
    )


def choose_baseline(study: Study) -> str | None:
    """The first arm of plain GRPO with a usable run; otherwise the first arm with a usable run."""
    plain = set(select(study.usable_runs, plain_grpo=True)["arm"].tolist())
    usable = set(study.usable_runs["arm"].tolist())
    with_runs = [arm for arm in study.arms if arm in usable]
    return next((arm for arm in with_runs if arm in plain), with_runs[0] if with_runs else None)


def _difference(study: Study, arm: str, baseline: str, k: int) -> Difference | None:
    rows = at_last(heldout(study))
    first, second = (scores(select(rows, arm=name), k) for name in (arm, baseline))
    return difference(first, second) if first is not None and second is not None else None


def summarize(study: Study, baseline: str | None = None) -> Summary:
    """Summarizes a study. `baseline` is an arm's label; None leaves it to `choose_baseline`.

    Raises:
        UnknownArm: `baseline` is not an arm of the study.
    """
    if baseline is not None and baseline not in study.arms:
        raise UnknownArm(f"no arm {baseline!r}; the arms are: {'; '.join(study.arms)}")
    baseline = baseline if baseline is not None else choose_baseline(study)
    arms = tuple(summarize_arm(study, arm) for arm in study.arms)
    by_name = {arm.arm: arm for arm in arms}
    differences = tuple(
        ArmDifference(
            arm=arm.arm,
            passes={k: _difference(study, arm.arm, baseline, k) for k in KS},
            probability_of_improvement=probability_of_improvement(arm.seed_means[1], by_name[baseline].seed_means[1]),
            seed_pairs=len(arm.seed_means[1]) * len(by_name[baseline].seed_means[1]),
        )
        for arm in arms
        if baseline is not None and arm.arm != baseline and arm.seeds
    )
    return Summary(arms=arms, baseline=baseline, differences=differences)
