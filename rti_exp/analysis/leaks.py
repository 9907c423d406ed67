"""How many merged corrections leak, by the deterministic rule, alongside training and held-out scores.

The rule reads a record: evidence, task, history, correction. It is the verifier's rule
(`rti_exp.intervention.leak_rule`) without the tools' schemas. It judges all arms alike, whatever their verifier was.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from rti_exp.analysis.chart_rendering import COLOURS, Chart
from rti_exp.analysis.run_files import read_record
from rti_exp.analysis.study import Study, records, select
from rti_exp.analysis.table_rendering import EMPTY, Table
from rti_exp.analysis.training_curves import (
    Series,
    evaluation_series,
    finish_iteration_axes,
    metric_series,
    shared_iterations,
)
from rti_exp.intervention.leak_rule import leaked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORTED_SHARE = 0.1
"""A report includes leaks if at least this share of some arm's merges leaks."""
KNOWN, WRITTEN = ("task", "history"), ("thinking", "correction")
"""Fields of a record: what the policy had seen, and what the corrector wrote."""
MERGE_COLUMNS = ("run_key", "arm", "seed", "iteration", "family", "leaky")


def is_leaky(record: Mapping[str, Any]) -> bool:
    """Whether a recorded correction, or the thinking before it, contains facts that only its evidence contains."""
    known, written = ("\n".join(_text(record, name) for name in names) for names in (KNOWN, WRITTEN))
    return bool(leaked(_text(record, "evidence"), known, written))


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def merges(study: Study) -> pd.DataFrame:
    """The accepted corrections of usable runs, one row each: MERGE_COLUMNS."""
    accepted = select(study.of_usable(study.interventions), outcome="accepted")
    rows = [
        {**{name: row[name] for name in MERGE_COLUMNS[:-1]}, "leaky": is_leaky(read_record(row))}
        for row in records(accepted)
    ]
    return pd.DataFrame(rows, columns=list(MERGE_COLUMNS))


def should_report_leaks(study: Study) -> bool:
    merged = merges(study)
    return any(select(merged, arm=arm)["leaky"].mean() >= REPORTED_SHARE for arm in set(merged["arm"].tolist()))


def leak_table(study: Study) -> Table:
    """Merges of each arm and how many of them leak, in total and in the last third of the iterations."""
    merged = merges(study)
    rows = []
    for arm in study.arms:
        runs = select(study.usable_runs, arm=arm)
        if runs.empty:
            continue
        of_arm = select(merged, arm=arm)
        late: Any = of_arm[of_arm["iteration"] > 2 / 3 * max(runs["iterations_done"].tolist())]
        leaky: list[bool] = of_arm["leaky"].tolist()
        rows.append((arm, str(len(leaky)), str(sum(leaky)), _share(leaky), _share(late["leaky"].tolist())))
    return Table(
        title="Merged corrections that leak, sum over finished runs",
        columns=("arm", "merges", "leaky", "share", "share, last third"),
        rows=tuple(rows),
        notes=("Judged by the deterministic leak rule, whatever the arm's verifier was.",),
    )


def _share(leaky: Sequence[bool]) -> str:
    return f"{sum(leaky) / len(leaky):.1%}" if leaky else EMPTY


def leaky_shares(merged: pd.DataFrame, ends: Sequence[int]) -> dict[int, float]:
    """Share of leaky merges, over all seeds, in the iterations up to each of `ends` and after the previous one.

    Intervals without a merge are omitted.
    """
    leaks: dict[int, list[int]] = {}
    for iteration, leaky in zip(merged["iteration"].tolist(), merged["leaky"].tolist(), strict=True):
        place = bisect.bisect_left(ends, iteration)
        if place < len(ends):
            leaks.setdefault(ends[place], []).append(int(leaky))
    return {end: sum(values) / len(values) for end, values in sorted(leaks.items())}


def leak_charts(study: Study) -> list[Chart]:
    """For each arm three lines: training pass@1, held-out pass@1, leaky share of merges between evaluations."""
    merged = merges(study)
    training, heldout = metric_series(study, "pass@1/before"), evaluation_series(study, 1)
    charts = []
    for place, arm in enumerate(study.arms):
        scores = _seed_means(heldout, arm)
        ends = [iteration for iteration in scores if iteration > 0]
        lines = {
            "training pass@1, before intervention": _seed_means(training, arm),
            "held-out pass@1": scores,
            "leaky share of merges": leaky_shares(select(merged, arm=arm), ends),
        }
        if any(lines.values()):
            caption = f"{arm}: training and held-out pass@1, and the leaky share of merged corrections."
            charts.append(Chart(name=f"leaks_{place}", caption=caption, draw=partial(_three_lines, arm, lines)))
    return charts


def _seed_means(series: Series, arm: str) -> dict[int, float]:
    seeds = series.get(arm, {})
    return {
        iteration: math.fsum(values[iteration] for values in seeds.values()) / len(seeds)
        for iteration in shared_iterations(seeds)
    }


def _three_lines(title: str, lines: Mapping[str, Mapping[int, float]], axes: Axes) -> None:
    axes.set_title(title)
    for place, (label, values) in enumerate(lines.items()):
        marker = "o" if place else ""
        axes.plot(list(values), list(values.values()), color=COLOURS[place], marker=marker, ms=3, label=label)
    axes.set_ylim(-0.02, 1.02)
    finish_iteration_axes(axes, "share")
