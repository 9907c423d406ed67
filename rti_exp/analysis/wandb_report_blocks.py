"""The blocks of a W&B Report of a study: its tables as text, and curves that W&B draws, one run set per arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rti_exp.analysis.arm_summary import OUTCOMES, Summary
from rti_exp.analysis.study import Study, select
from rti_exp.analysis.study_tables import (
    compute_table,
    differences_table,
    excluded_table,
    families_table,
    funnel_table,
    results_table,
)
from rti_exp.analysis.table_rendering import Table, table_as_markdown
from rti_exp.runs import load_run

CURVES = (
    ("Held-out pass@1", ("eval/pass@1",), False),
    ("Held-out pass@8", ("eval/pass@8",), False),
    ("Reward while training", ("reward/mean",), False),
    ("Groups with a success before intervention", ("pass@G/before",), False),
    ("Groups that failed as a whole", ("groups/all_failed",), False),
    ("Fixed probe: perplexity of right actions", ("probe/perplexity",), True),
)
"""(title, metrics of the W&B runs, whether the axis is logarithmic)."""
CORRECTIONS = (
    ("Perplexity of corrections, median", ("correction/perplexity_median",), True),
    ("Perplexity of accepted corrections", ("correction/accepted_perplexity_mean",), True),
    ("rho of corrected tokens, mean", ("correction/rho_mean",), False),
    ("rho of corrected tokens, spread", ("correction/rho_std",), False),
)
COMPUTE = (
    ("Generated tokens", ("tokens/generated", "tokens/role_generated"), False),
    ("Trained tokens", ("tokens/trained",), False),
    ("Seconds per iteration", ("time/iteration",), False),
)


class NothingInWandb(Exception):
    """No run of the study was logged to W&B, or the runs are in several projects."""


def logged_runs(study: Study) -> pd.DataFrame:
    """The usable runs of a study that have a W&B run, with the column `wandb_id`.

    Raises:
        NothingInWandb: there are none.
    """
    runs = study.usable_runs
    ids = [(load_run(Path(path)).status or {}).get("wandb_id") for path in runs["directory"].tolist()]
    logged: Any = runs.assign(wandb_id=ids)
    logged = logged[logged["wandb_id"].notna()]
    if logged.empty:
        raise NothingInWandb(f"no finished run of study {study.name} was logged to W&B (logger=wandb)")
    return logged


def logger_option(runs: pd.DataFrame, key: str) -> str | None:
    """The common value of `logger.<key>` in the configs of these runs.

    Raises:
        NothingInWandb: they have several values.
    """
    loggers = [load_run(Path(path)).config.get("logger") or {} for path in runs["directory"].tolist()]
    values = {logger.get(key) for logger in loggers}
    if len(values) > 1:
        raise NothingInWandb(f"the runs have several W&B {key} values: {sorted(map(str, values))}; pass --{key}")
    return values.pop()


def build_report(study: Study, summary: Summary, *, project: str, entity: str) -> Any:
    """The report as an object of `wandb_workspaces.reports.v2`; nothing is sent."""
    from wandb_workspaces.reports.v2 import interface as wr  # pyright: ignore[reportMissingImports]  (an extra)

    arms = _run_sets(wr, study, project, entity)
    outcomes = [f"funnel/{name}" for name in OUTCOMES]
    funnel: list[Any] = [
        wr.LinePlot(title="Interventions by outcome", x="iteration", y=list(outcomes), plot_type="stacked-area")
    ]
    table = wr.WeavePanelSummaryTable(table_name="interventions", layout=wr.Layout(x=0, y=0, w=24, h=16))
    ungrouped = [dataclasses.replace(arm, groupby=[]) for arm in arms]
    blocks = [
        wr.H1("Results"),
        *_texts(wr, results_table(study, summary), differences_table(summary), excluded_table(study)),
        wr.H1("Curves"),
        wr.PanelGrid(runsets=arms, panels=_panels(wr, CURVES)),
        *_texts(wr, families_table(summary)),
        wr.H1("Outcomes of the interventions"),
        *(wr.PanelGrid(runsets=[arm], panels=funnel) for arm in arms),
        *_texts(wr, funnel_table(summary)),
        wr.H1("Corrections"),
        wr.PanelGrid(runsets=arms, panels=_panels(wr, CORRECTIONS)),
        wr.PanelGrid(runsets=ungrouped, panels=[table]),
        wr.H1("Compute"),
        *_texts(wr, compute_table(summary)),
        wr.PanelGrid(runsets=arms, panels=_panels(wr, COMPUTE)),
    ]
    title = f"Study {study.name}"
    return wr.Report(project=project, entity=entity, title=title, description=study.title, blocks=blocks)


def _run_sets(wr: Any, study: Study, project: str, entity: str) -> list[Any]:
    """A run set for each arm, its seeds grouped into one line."""
    runs = logged_runs(study)
    ids_by_arm = {arm: sorted(select(runs, arm=arm)["wandb_id"].tolist()) for arm in study.arms}
    return [
        wr.Runset(entity=entity, project=project, name=arm, filters=f"Metric('ID') in {ids!r}", groupby=["group"])
        for arm, ids in ids_by_arm.items()
        if ids
    ]


def _panels(wr: Any, curves: Sequence[tuple[str, Sequence[str], bool]]) -> list[Any]:
    """Two panels per row. Lines are means over an arm's seeds, in a band from the lowest to the highest."""
    return [
        wr.LinePlot(
            title=title,
            x="iteration",
            y=list(metrics),
            log_y=log,
            groupby_aggfunc="mean",
            groupby_rangefunc="minmax",
            layout=wr.Layout(x=12 * (place % 2), y=8 * (place // 2), w=12, h=8),
        )
        for place, (title, metrics, log) in enumerate(curves)
    ]


def _texts(wr: Any, *tables: Table) -> list[Any]:
    """The tables that have rows, as Markdown."""
    return [wr.MarkdownBlock(table_as_markdown(table)) for table in tables if table.rows]


def as_plain(value: Any) -> Any:
    """A report or a part of it for JSON: {"type": class, its fields that are set}."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        kept = {name: as_plain(item) for name, item in fields.items() if item not in (None, "", [], {}, (None, None))}
        return {"type": type(value).__name__, **kept}
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
