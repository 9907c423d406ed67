"""Whether the policy learns from corrections: how its numbers change over training, and against the baseline arm.

Three measures:
- The fixed probe: log-perplexity of the same right actions at the same held-out steps, whatever the run intervened on.
- The intervened steps: log-perplexity of an iteration's corrections, whose mix of tasks changes as the policy learns.
- Breadth: the share of groups with a success before any intervention.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from rti_exp.analysis.arm_summary import Summary
from rti_exp.analysis.chart_rendering import Chart
from rti_exp.analysis.statistics import Difference, Floats, Scores, difference
from rti_exp.analysis.study import Study, select
from rti_exp.analysis.table_rendering import EMPTY, Table, show_interval, show_ratio
from rti_exp.analysis.training_curves import curve_chart, metric_series, series_of

PROBE = "perplexity"
INTERVENED = "correction/perplexity_median"
BREADTH = "pass@G/before"


def _matrix(rows: pd.DataFrame, columns: str, values: str) -> Scores | None:
    """One value per seed and `columns`, without seeds that have none; None if no seed is left."""
    table = rows.pivot(index="seed", columns=columns, values=values).dropna(how="all")
    values_SN = table.to_numpy(dtype=np.float64)
    if values_SN.size == 0:
        return None
    seeds, tasks = tuple(int(seed) for seed in table.index), tuple(map(str, table.columns))
    return Scores(seeds=seeds, tasks=tasks, values_SN=values_SN)


def probe_scores(study: Study, arm: str, *, last: bool) -> Scores | None:
    """Log-perplexity of the fixed probe per seed at the end of training, or before it: a single column."""
    rows: Any = select(study.of_usable(study.probes), arm=arm)
    if rows.empty or PROBE not in rows:
        return None
    rows = rows[rows["iteration"] == rows.groupby("run_key")["iteration"].transform("max" if last else "min")]
    return _matrix(rows.assign(value=np.log(rows[PROBE]), measure="probe"), "measure", "value")


def third_scores(
    study: Study, arm: str, metric: str, transform: Callable[[Floats], Floats], *, last: bool = True
) -> Scores | None:
    """A transformed train metric per seed and iteration, over the last or first third of the iterations."""
    rows: Any = select(study.of_usable(study.metrics), arm=arm)
    if rows.empty or metric not in rows:
        return None
    length = rows.groupby("run_key")["iteration"].transform("max")
    rows = rows[rows["iteration"] > length * 2 / 3] if last else rows[rows["iteration"] <= length / 3]
    return _matrix(rows.assign(value=transform(rows[metric].to_numpy(dtype=np.float64))), "iteration", "value")


def _difference(first: Scores | None, second: Scores | None) -> Difference | None:
    return difference(first, second) if first is not None and second is not None else None


def _perplexity(log_perplexities: Scores | None) -> str:
    if log_perplexities is None:
        return EMPTY
    return f"{math.exp(float(np.nanmean(log_perplexities.values_SN))):.2f}"


def learning_table(study: Study, summary: Summary) -> Table:
    """The three measures by arm; no rows if no run has a probe."""
    base = summary.baseline
    rows = []
    for arm in [arm.arm for arm in summary.arms if arm.seeds]:
        probe = probe_scores(study, arm, last=True)
        if probe is None:
            continue
        intervened = third_scores(study, arm, INTERVENED, np.log)
        compared = (EMPTY, EMPTY, EMPTY)
        if base is not None and arm != base:
            breadth, base_breadth = (third_scores(study, name, BREADTH, np.asarray) for name in (arm, base))
            compared = (
                show_ratio(_difference(probe, probe_scores(study, base, last=True))),
                show_ratio(_difference(intervened, third_scores(study, base, INTERVENED, np.log))),
                show_interval(_difference(breadth, base_breadth), signed=True),
            )
        start = _perplexity(probe_scores(study, arm, last=False))
        early = _perplexity(third_scores(study, arm, INTERVENED, np.log, last=False))
        rows.append((arm, start, _perplexity(probe), compared[0], early, _perplexity(intervened), *compared[1:]))
    return Table(
        title=f"Learning from corrections, against {base}",
        columns=(
            *("arm", "probe, start", "probe, end", "end, ratio"),
            *("intervened, start", "intervened, end", "intervened, ratio", "pass@G before"),
        ),
        rows=tuple(rows),
        notes=(
            "Perplexities under the rollout prompt, geometric means. Probe: the same right actions at the same "
            "held-out steps in every run; intervals over seeds.",
            "Intervened steps: the median of each iteration, averaged over the first and the last third of the "
            "iterations. Their ratio, and the difference of pass@G before intervention: over the last third, intervals "
            "over seeds and iterations, paired, since arms share tasks. Seeds without an intervention there are "
            "excluded.",
        ),
        may_shorten=True,
    )


def intervened_charts(study: Study) -> list[Chart]:
    """Perplexity of the corrections, under the rollout prompt, over training."""
    metrics = (
        (INTERVENED, "Perplexity of the corrections of an iteration", "median, log scale"),
        ("correction/accepted_perplexity_mean", "Perplexity of accepted corrections", "mean, log scale"),
    )
    return [
        curve_chart(study, f"intervened_{place}", series, title, label, log=True)
        for place, (metric, title, label) in enumerate(metrics)
        if (series := metric_series(study, metric))
    ]


def probe_charts(study: Study) -> list[Chart]:
    """Perplexity of the fixed probe, over all cases and by family; empty if no run has a probe."""
    rows = study.of_usable(study.probes)
    names = sorted(str(name) for name in rows.columns if str(name).partition("/")[0] == PROBE)
    charts = []
    for place, name in enumerate(names):
        series = series_of(rows, name)
        if series:
            title = f"Fixed probe, {name.partition('/')[2] or 'all families'}: perplexity of right actions"
            charts.append(curve_chart(study, f"probe_{place}", series, title, "geometric mean, log scale", log=True))
    return charts


def gate_table(study: Study) -> Table:
    """Perplexity and acceptance of scored corrections, by arm and source: recorded ones, in usable runs."""
    rows = study.of_usable(study.interventions)
    scored: Any = rows[rows["perplexity"].notna()]
    cells = []
    for arm in study.arms:
        for source in sorted(set(select(scored, arm=arm)["source"].tolist())):
            corrections = select(scored, arm=arm, source=source)
            outcomes = corrections["outcome"].tolist()
            shares = (f"{outcomes.count(name) / len(outcomes):.1%}" for name in ("too_perplexing", "accepted"))
            median = statistics.median(corrections["perplexity"].tolist())
            cells.append((arm, source, str(len(outcomes)), f"{median:.2f}", *shares))
    return Table(
        title="Scored corrections and the gate",
        columns=("arm", "source", "scored", "median perplexity", "stopped by the gate", "accepted"),
        labels=2,
        rows=tuple(cells),
        notes=("Recorded corrections of finished runs that have a perplexity, and shares of them.",),
    )
