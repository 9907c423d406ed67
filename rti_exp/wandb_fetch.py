"""Fetches the runs of a study from W&B as run directories: `python -m rti_exp.wandb_fetch ENTITY/PROJECT STUDY`.

For runs on other machines with `logger=wandb`, which uploads the four files that reports and notebooks read. Run
directories that exist are left unchanged. Runs that are still running are left out, and listed. Exit codes: 0 every
finished run is here, 1 W&B refused or a run could not be fetched, 2 bad arguments or no login.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs.redaction import redact_output


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m rti_exp.wandb_fetch", description="Fetch the runs of a study from W&B as run directories."
    )
    arguments.add_argument(
        "project", metavar="ENTITY/PROJECT", help="the W&B project of the runs, e.g. my-team/rti_exp"
    )
    arguments.add_argument("study", metavar="STUDY", help="the study: the group of its W&B runs")
    arguments.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies go (default: runs)")
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    options = parser().parse_args(arguments)
    from rti_exp.tracking.wandb_runs import FetchError, Refused, fetch_study

    try:
        settled, failed = fetch_study(options.project, options.study, options.runs_root)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, Refused) else 2
    print(*settled, sep="\n")
    print(*failed, sep="\n", file=sys.stderr)
    directory = options.runs_root / options.study
    print(f"for the report:\n  python -m rti_exp.report {options.study} --runs-root {options.runs_root}  ({directory})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
