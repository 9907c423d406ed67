"""What changes in the policy while it learns: perplexity of corrections, success before intervention, breadth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rti_exp.analysis.cells import NONE, Sheet
from rti_exp.analysis.charts import Series, curves, evaluation_series, metric_series, series_of, with_band
from rti_exp.analysis.figures import Chart
from rti_exp.analysis.reading import Study, select

PROBE = "perplexity"
METRICS = (
    ("correction/perplexity_median", "Perplexity of the corrections of an iteration", "median, log scale"),
    ("correction/accepted_perplexity_mean", "Perplexity of accepted corrections", "mean, log scale"),
)


def intervened_charts(study: Study) -> list[Chart]:
    """Perplexity of the intervened steps, under the rollout prompt, over training."""
    return [
        _log_chart(study, f"intervened_{place}", metric_series(study, metric), title, label)
        for place, (metric, title, label) in enumerate(METRICS)
        if metric_series(study, metric)
    ]


def probe_charts(study: Study) -> list[Chart]:
    """Perplexity of the fixed probe's corrections, over all cases and by family; empty where runs have no probe."""
    rows = study.of_usable(study.probes)
    names = sorted(str(name) for name in rows.columns if str(name).partition("/")[0] == PROBE)
    charts = []
    for place, name in enumerate(names):
        series = series_of(rows, name)
        if series:
            family = name.partition("/")[2] or "all families"
            title = f"Fixed probe, {family}: perplexity of right actions"
            charts.append(_log_chart(study, f"probe_{place}", series, title, "geometric mean, log scale"))
    return charts


def breadth_charts(study: Study) -> list[Chart]:
    """Share of groups with a success before intervention, and held-out pass@8."""
    found = (
        ("breadth_training", metric_series(study, "pass@G/before"), "Pass@G before intervention", "share of groups"),
        ("breadth_heldout", evaluation_series(study, 8), "Held-out pass@8", "pass@8"),
    )
    return [
        Chart(
            name=name,
            caption=with_band(title, series),
            draw=curves(study, series, title, label, share=True),
        )
        for name, series, title, label in found
        if series
    ]


def _log_chart(study: Study, name: str, series: Series, title: str, label: str) -> Chart:
    draw = curves(study, series, title, label, share=False, log=True)
    return Chart(name=name, caption=with_band(title, series), draw=draw)


def gate_sheet(study: Study) -> Sheet:
    """For each arm and source of corrections: how perplexing they are, and how often they get through the gate.

    Counted are recorded corrections that reached the gate, that is, that have a perplexity; those of usable runs.
    """
    rows = study.of_usable(study.interventions)
    found = []
    for arm in study.arms:
        own = select(rows, arm=arm)
        for source in sorted(set(own["source"].tolist())):
            scored = [
                (value, outcome)
                for value, outcome in zip(
                    select(own, source=source)["perplexity"].tolist(),
                    select(own, source=source)["outcome"].tolist(),
                    strict=True,
                )
                if not math.isnan(value)
            ]
            if scored:
                found.append((arm, source, *_gate_cells([value for value, _ in scored], [name for _, name in scored])))
    return Sheet(
        title="Corrections that were scored, and the gate",
        columns=("arm", "source", "scored", "median perplexity", "stopped by the gate", "accepted"),
        labels=2,
        rows=tuple(found),
        notes=("Recorded corrections with a perplexity, of finished runs; shares of them.",),
    )


def _gate_cells(perplexities: Sequence[float], outcomes: Sequence[str]) -> tuple[str, ...]:
    total = len(outcomes)
    shares = (f"{outcomes.count(name) / total:.1%}" for name in ("too_perplexing", "accepted"))
    return (str(total), f"{statistics.median(perplexities):.2f}" if total else NONE, *shares)
