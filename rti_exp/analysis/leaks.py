"""How many merged corrections leak, by the deterministic rule, beside what training and held-out tasks score.

The rule looks at what a record holds: evidence, task, history, correction. It is the verifier's rule
(`rti_exp.intervention.leak_rule`), but that it does not see the tools' schemas, and it judges all arms alike,
whatever their own verifier was.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from rti_exp.analysis.browser import recorded
from rti_exp.analysis.cells import NONE, Sheet
from rti_exp.analysis.charts import COLOURS, Series, evaluation_series, legend, metric_series
from rti_exp.analysis.figures import Chart
from rti_exp.analysis.reading import Study, select
from rti_exp.intervention.leak_rule import leaked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TELLING = 0.1
"""A report shows leaks where this share of some arm's merges leaks."""
KNOWN, WRITTEN = ("task", "history"), ("thinking", "correction")
"""Fields of a record: what the policy had seen, what the corrector wrote."""
MERGE_COLUMNS = ("run_key", "arm", "seed", "iteration", "family", "leaky")


def is_leaky(record: Mapping[str, Any]) -> bool:
    """Whether the correction of an intervention record, or the thinking before it, has what only its evidence told."""
    known, written = ("\n".join(_text(record, name) for name in names) for names in (KNOWN, WRITTEN))
    return bool(leaked(_text(record, "evidence"), known, written))


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return value if isinstance(value, str) else ""


def merges(study: Study) -> pd.DataFrame:
    """The accepted corrections of usable runs, a row each: MERGE_COLUMNS."""
    accepted = select(study.of_usable(study.interventions), outcome="accepted")
    rows = [{str(key): value for key, value in row.items()} for row in accepted.to_dict("records")]
    return pd.DataFrame(
        [{**{name: row[name] for name in MERGE_COLUMNS[:-1]}, "leaky": is_leaky(recorded(row))} for row in rows],
        columns=list(MERGE_COLUMNS),
    )


def worth_telling(study: Study) -> bool:
    """Whether a share of TELLING or more of some arm's merges leaks."""
    found = merges(study)
    return any(select(found, arm=arm)["leaky"].mean() >= TELLING for arm in set(found["arm"].tolist()))


def leak_sheet(study: Study) -> Sheet:
    """Merges of each arm and how many of them leak, in all and in the last third of the iterations."""
    found = merges(study)
    rows = []
    for arm in study.arms:
        runs = select(study.usable_runs, arm=arm)
        if runs.empty:
            continue
        own = select(found, arm=arm)
        late: Any = own[own["iteration"] > 2 / 3 * max(runs["iterations_done"].tolist())]
        leaky: list[bool] = own["leaky"].tolist()
        rows.append((arm, str(len(leaky)), str(sum(leaky)), _share(leaky), _share(late["leaky"].tolist())))
    return Sheet(
        title="Merged corrections that leak, sum over finished runs",
        columns=("arm", "merges", "leaky", "share", "share, last third"),
        rows=tuple(rows),
        notes=("Judged by the deterministic leak rule, whatever the arm's verifier was.",),
    )


def _share(leaky: Sequence[bool]) -> str:
    return f"{sum(leaky) / len(leaky):.1%}" if leaky else NONE


def leaky_shares(found: pd.DataFrame, ends: Sequence[int]) -> dict[int, float]:
    """Share of leaky merges, all seeds together, in the iterations up to each of `ends` (and after the one before).

    Intervals without a merge are left out.
    """
    counts: dict[int, list[int]] = {}
    for iteration, leaky in zip(found["iteration"].tolist(), found["leaky"].tolist(), strict=True):
        place = bisect.bisect_left(ends, iteration)
        if place < len(ends):
            counts.setdefault(ends[place], []).append(int(leaky))
    return {end: sum(values) / len(values) for end, values in sorted(counts.items())}


def leak_charts(study: Study) -> list[Chart]:
    """For each arm three lines: training pass@1, held-out pass@1, leaky share of merges between evaluations."""
    found = merges(study)
    training, heldout = metric_series(study, "pass@1/before"), evaluation_series(study, 1)
    charts = []
    for place, arm in enumerate(study.arms):
        scores = _seed_means(heldout, arm)
        ends = [iteration for iteration in scores if iteration > 0]
        lines = {
            "training pass@1, before intervention": _seed_means(training, arm),
            "held-out pass@1": scores,
            "leaky share of merges": leaky_shares(select(found, arm=arm), ends),
        }
        if any(lines.values()):
            caption = f"{arm}: training and held-out pass@1, and the leaky share of merged corrections."
            charts.append(Chart(name=f"leaks_{place}", caption=caption, draw=_three_lines(arm, lines)))
    return charts


def _seed_means(series: Series, arm: str) -> dict[int, float]:
    """Mean over seeds at the iterations that all seeds have."""
    seeds = list(series.get(arm, {}).values())
    shared = sorted(set.intersection(*(set(values) for values in seeds))) if seeds else []
    return {place: math.fsum(values[place] for values in seeds) / len(seeds) for place in shared}


def _three_lines(title: str, lines: Mapping[str, Mapping[int, float]]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.set_title(title)
        for place, (label, values) in enumerate(lines.items()):
            marker = "o" if place else ""
            axes.plot(list(values), list(values.values()), color=COLOURS[place], marker=marker, ms=3, label=label)
        axes.set_ylim(-0.02, 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("RL iteration")
        axes.set_ylabel("share")
        legend(axes)

    return draw
