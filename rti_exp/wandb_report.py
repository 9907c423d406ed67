"""A W&B Report of a study whose runs are in W&B: `python -m rti_exp.wandb_report STUDY`.

The same panels as `python -m rti_exp.report`: the tables with their intervals as text, computed here from the run
directories, and curves that W&B draws from what was synced, one run set an arm. `--dry-run` prints the blocks as JSON
and needs no account. Exit codes: 0 made, 1 W&B refused, 2 no such study, nothing of it in W&B, or no login.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.report import find_study
from rti_exp.runs import load_run

if TYPE_CHECKING:
    import pandas as pd

    from rti_exp.analysis.reading import Study
    from rti_exp.analysis.sheets import Sheet
    from rti_exp.analysis.summary import Summary

INSTALL = "the W&B report needs wandb-workspaces: pip install 'rti-exp[reports]'"
CURVES = (
    ("Held-out pass@1", ("eval/pass@1",), False),
    ("Held-out pass@8", ("eval/pass@8",), False),
    ("Reward while training", ("reward/mean",), False),
    ("Groups with a success before intervention", ("pass@G/before",), False),
    ("Groups that failed as a whole", ("groups/all_failed",), False),
    ("Fixed probe: perplexity of right actions", ("probe/perplexity",), True),
)
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
Curves = Sequence[tuple[str, Sequence[str], bool]]
"""(title, metrics of the W&B runs, logarithmic or not)."""


class NothingInWandb(Exception):
    """No run of the study was logged to W&B, or they are not of one project."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m rti_exp.wandb_report", description="Make a W&B Report of a study whose runs are synced."
    )
    found.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    found.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    found.add_argument("--project", help="W&B project (default: the one that the runs were logged to)")
    found.add_argument("--entity", help="W&B user or team (default: that of the runs, else of the login)")
    found.add_argument("--baseline", metavar="ARM", help='compare with this arm, e.g. "gate.delta=0"')
    found.add_argument("--dry-run", action="store_true", help="print the report's blocks as JSON; needs no login")
    return found


def logged_runs(study: Study) -> pd.DataFrame:
    """The usable runs of a study that have a W&B run, with the column `wandb_id`.

    Raises:
        NothingInWandb: there is none.
    """
    runs = study.usable_runs
    ids = [(load_run(Path(path)).status or {}).get("wandb_id") for path in runs["directory"].tolist()]
    found: Any = runs.assign(wandb_id=ids)
    found = found[found["wandb_id"].notna()]
    if found.empty:
        raise NothingInWandb(f"no finished run of study {study.name} was logged to W&B (logger=wandb)")
    return found


def place_of(runs: pd.DataFrame, key: str) -> str | None:
    """The one value of `logger.<key>` in the configs of these runs.

    Raises:
        NothingInWandb: they have several.
    """
    loggers = [load_run(Path(path)).config.get("logger") or {} for path in runs["directory"].tolist()]
    values = {logger.get(key) for logger in loggers}
    if len(values) > 1:
        raise NothingInWandb(f"the runs are of several W&B {key} values: {sorted(map(str, values))}; say --{key}")
    return values.pop()


def build(study: Study, summary: Summary, *, project: str, entity: str) -> Any:
    """The report as an object of `wandb_workspaces.reports.v2`; nothing is sent."""
    from wandb_workspaces.reports.v2 import interface as wr  # pyright: ignore[reportMissingImports]  (an extra)

    from rti_exp.analysis.sheets import (
        compute_sheet,
        differences_sheet,
        families_sheet,
        funnel_sheet,
        listed_sheet,
        results_sheet,
    )
    from rti_exp.analysis.summary import OUTCOMES
    from rti_exp.analysis.tables import title_of

    arms = _run_sets(study, project, entity)
    outcomes = [f"funnel/{name}" for name in OUTCOMES]
    stacked = wr.LinePlot(title="Interventions by outcome", x="iteration", y=list(outcomes), plot_type="stacked-area")
    funnel: list[Any] = [stacked]
    table = wr.WeavePanelSummaryTable(table_name="interventions", layout=wr.Layout(x=0, y=0, w=24, h=16))
    blocks = [
        wr.H1("Results"),
        *_texts(results_sheet(study, summary), differences_sheet(summary), listed_sheet(study)),
        wr.H1("Curves"),
        wr.PanelGrid(runsets=arms, panels=_panels(CURVES)),
        *_texts(families_sheet(summary)),
        wr.H1("What became of the interventions"),
        *(wr.PanelGrid(runsets=[arm], panels=funnel) for arm in arms),
        *_texts(funnel_sheet(summary)),
        wr.H1("Corrections"),
        wr.PanelGrid(runsets=arms, panels=_panels(CORRECTIONS)),
        wr.PanelGrid(runsets=_ungrouped(arms), panels=[table]),
        wr.H1("Compute"),
        *_texts(compute_sheet(summary)),
        wr.PanelGrid(runsets=arms, panels=_panels(COMPUTE)),
    ]
    return wr.Report(
        project=project, entity=entity, title=f"Study {study.name}", description=title_of(study), blocks=blocks
    )


def _run_sets(study: Study, project: str, entity: str) -> list[Any]:
    """A run set for each arm, its seeds grouped into one line. A run's W&B id is its key."""
    from wandb_workspaces.reports.v2 import interface as wr  # pyright: ignore[reportMissingImports]  (an extra)

    from rti_exp.analysis.reading import select

    runs = logged_runs(study)
    by_arm = {arm: sorted(select(runs, arm=arm)["wandb_id"].tolist()) for arm in study.arms}
    return [
        wr.Runset(entity=entity, project=project, name=arm, filters=f"Metric('ID') in {ids!r}", groupby=["group"])
        for arm, ids in by_arm.items()
        if ids
    ]


def _ungrouped(arms: Sequence[Any]) -> list[Any]:
    return [dataclasses.replace(arm, groupby=[]) for arm in arms]


def _panels(curves: Curves) -> list[Any]:
    """Two panels a row; lines are means over an arm's seeds, in a band from the lowest to the highest."""
    from wandb_workspaces.reports.v2 import interface as wr  # pyright: ignore[reportMissingImports]  (an extra)

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


def _texts(*sheets: Sheet) -> list[Any]:
    """The tables that have rows, as Markdown; without a document's title, since the report has its own."""
    from wandb_workspaces.reports.v2 import interface as wr  # pyright: ignore[reportMissingImports]  (an extra)

    from rti_exp.analysis.tables import as_markdown

    return [wr.MarkdownBlock(as_markdown("", [sheet]).partition("\n")[2].strip()) for sheet in sheets if sheet.rows]


def as_plain(value: Any) -> Any:
    """A report or a part of it for JSON: {"type": class, its fields that are set}."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        kept = {name: as_plain(item) for name, item in fields.items() if item not in (None, "", [], {}, (None, None))}
        return {"type": type(value).__name__, **kept}
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def make(options: argparse.Namespace) -> str:
    """Build the report and, unless it is a dry run, save it; what to print.

    Raises:
        StudyError, UnknownArm, NothingInWandb, SettingsError: see their messages.
    """
    from rti_exp.analysis.reading import load_study
    from rti_exp.analysis.summary import summarize
    from rti_exp.config.settings import SettingsError
    from rti_exp.tracking.loggers import has_login

    study = load_study(find_study(options.study, options.runs_root), interventions=False)
    summary = summarize(study, options.baseline)
    runs = logged_runs(study)
    project = options.project or place_of(runs, "project") or "rti_exp"
    entity = options.entity or place_of(runs, "entity") or ""
    if options.dry_run:
        return json.dumps(as_plain(build(study, summary, project=project, entity=entity)), indent=2, allow_nan=False)
    if not has_login():
        raise SettingsError(
            "there is no W&B login; set the environment variable WANDB_API_KEY or run `wandb login`, "
            "or look at the blocks with --dry-run"
        )
    import wandb

    entity = entity or wandb.Api().default_entity or ""
    return build(study, summary, project=project, entity=entity).save().url


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        import wandb.errors
        import wandb_workspaces.reports.v2  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        print(f"error: {INSTALL}", file=sys.stderr)
        return 2
    from rti_exp.analysis.reading import StudyError
    from rti_exp.analysis.summary import UnknownArm
    from rti_exp.config.settings import SettingsError

    try:
        print(make(options))
    except (StudyError, UnknownArm, NothingInWandb, SettingsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (wandb.errors.Error, ValueError, OSError) as error:
        print(f"error: W&B did not take the report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
