"""Creates a W&B Report of a study whose runs are in W&B: `python -m rti_exp.wandb_report STUDY`.

The same content as `python -m rti_exp.report`: tables with intervals, computed from the run directories, and curves
that W&B draws from the synced runs. `--dry-run` prints the blocks as JSON and needs no account. Exit codes: 0 created,
1 W&B refused, 2 no such study or arm, no run of it in W&B, or no login.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs.redaction import redact_output

INSTALL = "the W&B report needs wandb-workspaces: pip install 'rti-exp[reports]'"


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m rti_exp.wandb_report", description="Create a W&B Report of a study whose runs are synced."
    )
    arguments.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    arguments.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    arguments.add_argument("--project", help="W&B project (default: the project of the runs)")
    arguments.add_argument("--entity", help="W&B user or team (default: that of the runs, else of the login)")
    arguments.add_argument("--baseline", metavar="ARM", help='compare with this arm, e.g. "gate.delta=0"')
    arguments.add_argument("--dry-run", action="store_true", help="print the report's blocks as JSON; needs no login")
    return arguments


def create(options: argparse.Namespace) -> str:
    """Builds the report. Returns its blocks for a dry run; otherwise saves it and returns its URL.

    Raises:
        StudyError, UnknownArm, NothingInWandb, SettingsError: see their messages.
    """
    from rti_exp.analysis.arm_summary import summarize
    from rti_exp.analysis.study import find_study, load_study
    from rti_exp.analysis.wandb_report_blocks import as_plain, build_report, logged_runs, logger_option
    from rti_exp.config.settings import SettingsError
    from rti_exp.tracking.wandb_login import NO_LOGIN, has_login

    study = load_study(find_study(options.study, options.runs_root), interventions=False)
    summary = summarize(study, options.baseline)
    runs = logged_runs(study)
    project = options.project or logger_option(runs, "project") or "rti_exp"
    entity = options.entity or logger_option(runs, "entity") or ""
    if options.dry_run:
        report = build_report(study, summary, project=project, entity=entity)
        return json.dumps(as_plain(report), indent=2, allow_nan=False)
    if not has_login():
        raise SettingsError(f"{NO_LOGIN}, or print the blocks with --dry-run")
    import wandb

    return build_report(study, summary, project=project, entity=entity or wandb.Api().default_entity or "").save().url


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    options = parser().parse_args(arguments)
    try:
        import wandb.errors
        import wandb_workspaces.reports.v2  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        print(f"error: {INSTALL}", file=sys.stderr)
        return 2
    from rti_exp.analysis.arm_summary import UnknownArm
    from rti_exp.analysis.study import StudyError
    from rti_exp.analysis.wandb_report_blocks import NothingInWandb
    from rti_exp.config.settings import SettingsError

    try:
        print(create(options))
    except (StudyError, UnknownArm, NothingInWandb, SettingsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (wandb.errors.Error, ValueError, OSError) as error:
        print(f"error: W&B refused the report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
