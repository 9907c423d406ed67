"""The commands of `python -m rti_exp.runs`; exit codes: 0 done, 1 refused or could not, 2 no such run or study."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.runs.bounded import visible
from rti_exp.runs.differences import ABSENT, differing, flatten
from rti_exp.runs.find import NotFound, find_run, state_of, study_runs
from rti_exp.runs.reader import RunRecord
from rti_exp.runs.redaction import redact_output
from rti_exp.runs.status import RunLocked, RunUnwritable, lock

if TYPE_CHECKING:
    from rich.table import Table

DONE, REFUSED, NOT_FOUND, INTERRUPTED = 0, 1, 2, 130
NONE = "-"
OWN_KEYS = ("seed", "study", "runs_root", "fresh")
"""Keys that `list` has columns for, or that make no arm."""


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    found = argparse.ArgumentParser(prog="python -m rti_exp.runs", description="What runs there are.")
    commands = found.add_subparsers(dest="command", required=True, metavar="list|show|diff|rm")
    run = "a run key, its beginning, STUDY/KEY, or a run directory"
    listing = commands.add_parser("list", parents=[shared], help="all runs, or those of a study")
    listing.add_argument("study", nargs="?", metavar="STUDY")
    show = commands.add_parser("show", parents=[shared], help="one run: status, error, last evaluation, config")
    show.add_argument("run", metavar="RUN", help=run)
    diff = commands.add_parser("diff", parents=[shared], help="the keys in which two configs differ")
    diff.add_argument("first", metavar="RUN", help=run)
    diff.add_argument("second", metavar="RUN", help=run)
    remove = commands.add_parser("rm", parents=[shared], help="remove run directories")
    remove.add_argument("runs", nargs="+", metavar="RUN", help=run)
    remove.add_argument("--yes", action="store_true", help="do not ask")
    return found


def plain_text(value: Any) -> str:
    """A value on one line without control characters, which a terminal would obey."""
    text = NONE if value is None else str(value)
    return " ".join("".join(char if char.isprintable() else " " for char in text).split()) or NONE


def shown(value: Any) -> str:
    """A config value as one would type it."""
    if value is ABSENT:
        return "(not set)"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return plain_text(value)


def rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, folds: str = "") -> Table:
    """A table for a terminal; with `folds`, only the column of that name may take more than a line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=bool(folds) and column != folds)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def last_evaluation(run: RunRecord) -> Mapping[str, Any] | None:
    """The newest evaluation row; None if there is none, or if metrics.jsonl cannot be read."""
    try:
        rows = [row for row in run.metrics() if row.get("kind") == "eval"]
    except (ValueError, OSError):
        return None
    return max(rows, key=lambda row: row.get("iteration") or 0, default=None)


def score(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) and not isinstance(value, bool) else NONE


def when(written: Any) -> str:
    """`11-29 17:51` of the time in a status.json."""
    try:
        return datetime.fromisoformat(str(written)).strftime("%m-%d %H:%M")
    except ValueError:
        return NONE


def _row(run: RunRecord, arm: str) -> tuple[str, ...]:
    status = run.status or {}
    evaluation = last_evaluation(run) or {}
    total = run.config.get("max_iterations", "?")
    return (
        visible(run.directory.name),
        arm,
        plain_text(status.get("seed", run.config.get("seed"))),
        state_of(run),
        f"{status.get('iterations_done', 0)}/{total}",
        when(status.get("ended") or status.get("started")),
        score(evaluation.get("pass@1")),
    )


def arms_of(runs: Sequence[RunRecord]) -> list[str]:
    """What was typed for each run, without what all runs of the study have; what its config says, if nothing was."""
    typed = [[text for text in (run.status or {}).get("overrides") or [] if _names_an_arm(text)] for run in runs]
    shared = set.intersection(*(set(texts) for texts in typed)) if typed else set()
    named = [[text for text in texts if text not in shared] or texts for texts in typed]
    return [plain_text(" ".join(texts)) for texts in named]


def _names_an_arm(override: Any) -> bool:
    return str(override).lstrip("+").partition("=")[0] not in OWN_KEYS


def list_runs(options: argparse.Namespace) -> int:
    from rich.console import Console

    columns = ("key", "arm", "seed", "state", "iter", "when (UTC)", "pass@1")
    for study, runs in study_runs(options.runs_root, options.study).items():
        rows = [_row(run, arm) for run, arm in zip(runs, arms_of(runs), strict=True)]
        Console().print(rich_table(f"{visible(study)} ({len(runs)})", columns, rows, folds="arm"))
    return DONE


def show_run(options: argparse.Namespace) -> int:
    from rich.console import Console

    run = find_run(options.runs_root, options.run)
    console = Console(soft_wrap=True)
    status = dict(run.status or {})
    error = status.pop("error", None)
    status["state"] = state_of(run)
    rows = [(key, plain_text(" ".join(map(str, value)) if isinstance(value, list) else value))
            for key, value in flatten(status).items()]  # fmt: skip
    console.print(rich_table(visible(run.directory), ("status", ""), rows))
    if isinstance(error, Mapping):
        console.print(f"{plain_text(error.get('type'))}: {plain_text(error.get('message'))}", markup=False)
        for line in str(error.get("traceback") or "").splitlines():
            console.print("  " + "".join(c if c.isprintable() else " " for c in line), markup=False, highlight=False)
        console.print("")
    evaluation = last_evaluation(run)
    if evaluation is not None:
        scores = [(name, score(value)) for name, value in evaluation.items() if name.startswith("pass")]
        title = f"last evaluation: iteration {evaluation['iteration']}, {len(evaluation.get('tasks') or [])} tasks"
        console.print(rich_table(title, ("measure", "value"), scores))
    config = [(key, shown(value)) for key, value in flatten(run.config).items()]
    console.print(rich_table("config", ("key", "value"), config))
    return DONE


def diff_runs(options: argparse.Namespace) -> int:
    from rich.console import Console

    first, second = (find_run(options.runs_root, name) for name in (options.first, options.second))
    rows = [(key, shown(one), shown(other)) for key, one, other in differing(first.config, second.config)]
    if rows:
        columns = ("key", *map(visible, _names(first, second)))
        title = "1 key differs" if len(rows) == 1 else f"{len(rows)} keys differ"
        Console().print(rich_table(title, columns, rows))
    else:
        print("the configs are equal")
    return DONE


def _names(first: RunRecord, second: RunRecord) -> tuple[str, str]:
    """The keys of two runs, with their studies where the keys are equal."""
    one, other = first.directory.resolve(), second.directory.resolve()
    if one.name != other.name:
        return one.name, other.name
    return f"{one.parent.name}/{one.name}", f"{other.parent.name}/{other.name}"


def remove_runs(options: argparse.Namespace) -> int:
    runs = {run.directory.resolve(): run for run in (find_run(options.runs_root, name) for name in options.runs)}
    for run in runs.values():
        print(f"{visible(run.directory)}: {state_of(run)}, {(run.status or {}).get('iterations_done', 0)} iterations")
    if not options.yes and not _confirmed(len(runs)):
        print("nothing removed", file=sys.stderr)
        return REFUSED
    code = DONE
    for directory in runs:
        try:
            _remove(directory)
        except (RunLocked, RunUnwritable, OSError) as error:
            print(f"error: {visible(error)}", file=sys.stderr)
            code = REFUSED
        else:
            print(f"removed: {visible(directory)}")
    return code


def _confirmed(count: int) -> bool:
    try:
        answer = input(f"remove {count} run{'' if count == 1 else 's'} for good? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _remove(directory: Path) -> None:
    """Held while it is removed, so that no run starts in what is half gone."""
    held = lock(directory)
    try:
        shutil.rmtree(directory)
    finally:
        os.close(held)


COMMANDS = {"list": list_runs, "show": show_run, "diff": diff_runs, "rm": remove_runs}


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except NotFound as error:
        print(f"error: {visible(error)}", file=sys.stderr)
        return NOT_FOUND
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
