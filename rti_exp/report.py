"""Reads a study back: `python -m rti_exp.report STUDY`.

Prints the tables, and writes into the study's directory results.md, results.csv, figures/ (PNG and SVG)
and report.html, one self-contained page. Exit codes: 0 written, 1 could not be written, 2 no such study
or arm. Runs that failed or are missing are listed, and are no error.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs import write_atomically

LISTED = 20


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m rti_exp.report",
        description="Tables, figures and an HTML report of a study's runs.",
    )
    found.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    found.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    found.add_argument("--output", type=Path, help="where to write (default: the study's directory)")
    found.add_argument("--baseline", metavar="ARM", help='compare with this arm, e.g. "gate.delta=0"')
    found.add_argument(
        "--interventions", type=int, default=600, metavar="N", help="embed at most N in the report (default: 600)"
    )
    found.add_argument("--no-figures", action="store_true", help="write no figures/ (the report has them anyway)")
    return found


def studies_under(runs_root: Path) -> list[str]:
    """Names of the directories that hold runs, sorted."""
    from rti_exp.analysis.reading import run_directories

    if not runs_root.is_dir():
        return []
    return sorted(entry.name for entry in runs_root.iterdir() if entry.is_dir() and run_directories(entry))


def find_study(name: str, runs_root: Path) -> Path:
    """The directory that a name or path means. Raises StudyError with the studies that there are."""
    from rti_exp.analysis.reading import StudyError, run_directories

    for path in (runs_root / name, Path(name)):
        if path.is_dir() and (run_directories(path) or (path / "status.json").exists()):
            return path
    known = studies_under(runs_root)
    if not known:
        raise StudyError(f"no study {name!r}: there are no runs in {runs_root.resolve()} (see --runs-root)")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    raise StudyError(f"no study {name!r} in {runs_root}.{hint} There are: {', '.join(known[:LISTED])}{more}")


def write_report(
    study_dir: Path, output: Path, *, baseline: str | None, interventions: int, figures: bool
) -> tuple[list[Path], str | None]:
    """Prints the tables and writes everything; returns what was written, and what was left out and why."""
    from rich.console import Console

    from rti_exp.analysis import tables
    from rti_exp.analysis.figures import NoFigures, save
    from rti_exp.analysis.gallery import gallery
    from rti_exp.analysis.html import render
    from rti_exp.analysis.reading import load_study
    from rti_exp.analysis.sheets import sheets
    from rti_exp.analysis.summary import summarize

    study = load_study(study_dir)
    summary = summarize(study, baseline)
    console = Console()
    with console.capture() as printed:
        console.print(tables.as_rich(tables.title_of(study), sheets(study, summary)))
    show(printed.get().removesuffix("\n"))
    output.mkdir(parents=True, exist_ok=True)
    written = tables.write_summary(study, summary, output)
    left_out = None
    if figures:
        folder = output / "figures"
        folder.mkdir(exist_ok=True)
        try:
            for chart in gallery(study, summary):
                written += save(chart, folder)
        except NoFigures as error:
            left_out = str(error)
    page = output / "report.html"
    write_atomically(page, render(study, summary, most=interventions))
    return [*written, page], left_out


def show(text: str) -> None:
    """Prints; a reader that has seen enough (`| head`) keeps nothing from being written."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.interventions < 0:
        parser().error("--interventions must be >= 0")
    from rti_exp.analysis.reading import StudyError
    from rti_exp.analysis.summary import UnknownArm

    try:
        study_dir = find_study(options.study, options.runs_root)
        written, left_out = write_report(
            study_dir,
            options.output or study_dir,
            baseline=options.baseline,
            interventions=options.interventions,
            figures=not options.no_figures,
        )
    except (StudyError, UnknownArm) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: cannot write: {error}", file=sys.stderr)
        return 1
    if left_out is not None:
        print(f"no figures: {left_out}", file=sys.stderr)
    shown = [path for path in written if path.parent.name != "figures"]
    count = len(written) - len(shown)
    show("written: " + ", ".join(str(path) for path in shown) + (f", and {count} files in figures/" if count else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
