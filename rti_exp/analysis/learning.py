"""Whether corrections are taken in: what changes over training, against the baseline arm, with intervals.

Three measures. The fixed probe: log-perplexity of the same right actions at the same held-out places, whatever
the run intervened on. The intervened steps: log-perplexity of an iteration's corrections, whose mix of tasks changes
as the policy learns. Breadth: share of groups with a success before any intervention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from rti_exp.analysis.cells import NONE, Sheet, show_interval, show_ratio
from rti_exp.analysis.reading import Study, select
from rti_exp.analysis.statistics import Difference, Floats, Scores, difference
from rti_exp.analysis.summary import Summary

PROBE = "perplexity"
INTERVENED = "correction/perplexity_median"
BREADTH = "pass@G/before"


def matrix(rows: pd.DataFrame, columns: str, values: str) -> Scores | None:
    """One number per seed and `columns`; seeds without any are left out, None without a seed."""
    if rows.empty or values not in rows:
        return None
    table = rows.pivot(index="seed", columns=columns, values=values).dropna(how="all")
    values_SN = table.to_numpy(dtype=np.float64)
    if values_SN.size == 0:
        return None
    return Scores(
        seeds=tuple(int(seed) for seed in table.index), tasks=tuple(map(str, table.columns)), values_SN=values_SN
    )


def probe_scores(study: Study, arm: str, *, last: bool) -> Scores | None:
    """Log-perplexity of the fixed probe per seed, before training or at its end: one column, as its cases are fixed."""
    rows: Any = select(study.of_usable(study.probes), arm=arm)
    if rows.empty or PROBE not in rows:
        return None
    place = rows.groupby("run_key")["iteration"].transform("max" if last else "min")
    chosen = rows[rows["iteration"] == place]
    return matrix(chosen.assign(value=np.log(chosen[PROBE]), measure="probe"), "measure", "value")


def one_third(
    study: Study, arm: str, metric: str, change: Callable[[Floats], Floats], *, last: bool = True
) -> Scores | None:
    """A train metric per seed and iteration over the last or first third of the iterations, through `change`."""
    rows: Any = select(study.of_usable(study.metrics), arm=arm)
    if rows.empty or metric not in rows:
        return None
    length = rows.groupby("run_key")["iteration"].transform("max")
    rows = rows[rows["iteration"] > length * 2 / 3] if last else rows[rows["iteration"] <= length / 3]
    return matrix(rows.assign(value=change(rows[metric].to_numpy(dtype=np.float64))), "iteration", "value")


def _against(first: Scores | None, second: Scores | None) -> Difference | None:
    return difference(first, second) if first is not None and second is not None else None


def _level(found: Scores | None) -> str:
    """Mean of a log-perplexity, as a perplexity."""
    return NONE if found is None else f"{math.exp(float(np.nanmean(found.values_SN))):.2f}"


def learning_sheet(study: Study, summary: Summary) -> Sheet:
    """An arm a row; no rows where no run has a probe."""
    rows = []
    base = summary.baseline
    for arm in [found.arm for found in summary.arms if found.seeds]:
        probe = probe_scores(study, arm, last=True)
        if probe is None:
            continue
        start, breadth, early, intervened = (
            probe_scores(study, arm, last=False),
            one_third(study, arm, BREADTH, np.asarray),
            one_third(study, arm, INTERVENED, np.log, last=False),
            one_third(study, arm, INTERVENED, np.log),
        )
        compared = (NONE, NONE, NONE)
        if base is not None and arm != base:
            compared = (
                show_ratio(_against(probe, probe_scores(study, base, last=True))),
                show_ratio(_against(intervened, one_third(study, base, INTERVENED, np.log))),
                show_interval(_against(breadth, one_third(study, base, BREADTH, np.asarray)), signed=True),
            )
        rows.append((arm, _level(start), _level(probe), compared[0], _level(early), _level(intervened), *compared[1:]))
    return Sheet(
        title=f"What is taken in, against {base}",
        columns=(
            "arm",
            "probe, start",
            "probe, end",
            "end, ratio",
            "intervened, start",
            "intervened, end",
            "intervened, ratio",
            "pass@G before",
        ),
        rows=tuple(rows),
        notes=(
            "Perplexities under the rollout prompt, geometric means. Probe: the same right actions at the same "
            "held-out places in every run; intervals over seeds.",
            "Intervened steps: the median of an iteration, mean over the first and over the last third of the "
            "iterations. Their ratio and pass@G before intervention (difference): over the last third; intervals over "
            "seeds and iterations, paired, since arms share tasks. A seed without an intervention there is left out.",
        ),
        may_shorten=True,
    )
