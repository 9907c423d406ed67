"""Reports a study: `python -m rti_exp.report STUDY`.

Prints the tables, and writes results.md, results.csv, figures/ (PNG and SVG) and report.html, one self-contained page,
into the study's directory. Exit codes: 0 written, 1 could not be written, 2 no such study or arm. Runs that failed or
are missing are listed and are not errors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rti_exp.runs import write_atomically
from rti_exp.runs.bounded import visible
from rti_exp.runs.redaction import redact_output

if TYPE_CHECKING:
    from rti_exp.analysis.arm_summary import Summary
    from rti_exp.analysis.study import Study


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m rti_exp.report",
        description="Tables, figures and an HTML report of a study's runs.",
    )
    arguments.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    arguments.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    arguments.add_argument("--output", type=Path, help="where to write (default: the study's directory)")
    arguments.add_argument("--baseline", metavar="ARM", help='compare with this arm, e.g. "gate.delta=0"')
    arguments.add_argument(
        "--interventions", type=int, default=600, metavar="N", help="embed at most N in the report (default: 600)"
    )
    arguments.add_argument("--no-figures", action="store_true", help="write no figures/ (the report has them anyway)")
    return arguments


def print_tables(study: Study, summary: Summary) -> None:
    from rich.console import Console

    from rti_exp.analysis.study_tables import study_tables
    from rti_exp.analysis.table_rendering import as_rich

    console = Console()
    with console.capture() as capture:
        console.print(as_rich(study.title, study_tables(study, summary)))
    print_text(capture.get().removesuffix("\n"))


def write_report(
    study: Study, summary: Summary, output: Path, *, interventions: int, figures: bool
) -> tuple[list[Path], str | None]:
    """Writes all files; returns their paths, and why the figures are missing, if they are."""
    from rti_exp.analysis.chart_rendering import NoFigures, save
    from rti_exp.analysis.report_page import render_report
    from rti_exp.analysis.results_files import write_results
    from rti_exp.analysis.study_charts import report_charts

    output.mkdir(parents=True, exist_ok=True)
    written = write_results(study, summary, output)
    problem = None
    if figures:
        folder = output / "figures"
        folder.mkdir(exist_ok=True)
        try:
            for chart in report_charts(study, summary):
                written += save(chart, folder)
        except NoFigures as error:
            problem = str(error)
    page = output / "report.html"
    write_atomically(page, render_report(study, summary, max_interventions=interventions))
    return [*written, page], problem


def print_text(text: str) -> None:
    """Prints. A reader that closes the pipe early (`| head`) does not stop the report from being written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    options = parser().parse_args(arguments)
    if options.interventions < 0:
        parser().error("--interventions must be >= 0")
    from rti_exp.analysis.arm_summary import UnknownArm, summarize
    from rti_exp.analysis.study import StudyError, find_study, load_study

    try:
        directory = find_study(options.study, options.runs_root)
        study = load_study(directory)
        summary = summarize(study, options.baseline)
        print_tables(study, summary)
        output = options.output or directory
        written, problem = write_report(
            study, summary, output, interventions=options.interventions, figures=not options.no_figures
        )
    except (StudyError, UnknownArm) as error:
        print(f"error: {visible(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot write: {visible(error)}", file=sys.stderr)
        return 1
    if problem is not None:
        print(f"no figures: {problem}", file=sys.stderr)
    files = [path for path in written if path.parent.name != "figures"]
    count = len(written) - len(files)
    print_text(f"written: {', '.join(map(visible, files))}" + (f", and {count} files in figures/" if count else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
