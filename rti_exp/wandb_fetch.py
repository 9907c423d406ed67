"""Runs of a study from W&B, as run directories: `python -m rti_exp.wandb_fetch ENTITY/PROJECT STUDY`.

For runs made on other machines with `logger=wandb`, which sends the four files that reports and notebooks read. What is
here already is left alone; what is still running there is left out, and said. Exit codes: 0 all that is done there is
here, 1 W&B refused or a run could not be fetched, 2 bad arguments or no login.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rti_exp.runs import TOLD_FILES, is_run_key, read_status

RUNNING = ("running", "pending")
PREFIX = "wandb:"


class RemoteFile(Protocol):
    """The part of `wandb.apis.public.File` that is used."""

    name: str

    def download(self, root: str = ".", replace: bool = False) -> Any: ...


class RemoteRun(Protocol):
    """The part of `wandb.apis.public.Run` that is used."""

    id: str
    state: str

    def files(self) -> Iterable[RemoteFile]: ...


class FetchError(Exception):
    """A study or run that cannot be fetched; the message says why."""


class Refused(FetchError):
    """W&B, or the network to it, says no."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m rti_exp.wandb_fetch", description="Fetch the runs of a study from W&B as run directories."
    )
    found.add_argument("project", metavar="ENTITY/PROJECT", help="where the runs are in W&B, e.g. my-team/rti_exp")
    found.add_argument("study", metavar="STUDY", help="the study: the group of its W&B runs")
    found.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies go (default: runs)")
    return found


def run_files(run: RemoteRun) -> tuple[str, list[RemoteFile]]:
    """(run key, files of the run directory) of a W&B run; other files, whatever their names, are not touched.

    Raises:
        FetchError: it has none, or those of several run directories.
    """
    pattern = re.compile(r"([^/]+)/(" + "|".join(re.escape(name) for name in TOLD_FILES) + ")")
    matches = [(match.group(1), file) for file in run.files() if (match := pattern.fullmatch(file.name))]
    found = [(key, file) for key, file in matches if is_run_key(key)]
    keys = sorted({key for key, _ in found})
    if len(keys) != 1:
        what = f"files of {len(keys)} run directories" if keys else "no files of a run directory (logger.files=true)"
        raise FetchError(f"the W&B run {run.id} has {what}")
    return keys[0], [file for _, file in found]


def fetch_run(run: RemoteRun, study: Path) -> str:
    """Bring one run to `<study>/<run key>`, whole or not at all; one line on what was done.

    Raises:
        FetchError: as `run_files`, or the files do not belong together.
        OSError: it cannot be written.
    """
    if run.state in RUNNING:
        return f"{run.id}  left out: still running there"
    key, files = run_files(run)
    target = study / key
    if target.exists():
        return f"{key}  is here already: left as it is"
    study.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=study) as folder:
        for file in files:
            file.download(root=folder, replace=True)
        status = read_status(Path(folder) / key)
        if status is None or status.get("run_key") != key:
            raise FetchError(f"the W&B run {run.id} has no readable status.json of run {key}")
        (Path(folder) / key).rename(target)
    return f"{key}  fetched: {status['state']}"


def remote_runs(project: str, study: str) -> Sequence[RemoteRun]:
    """The W&B runs of a study.

    Raises:
        FetchError: there is no login; a `Refused` if W&B refuses.
    """
    from rti_exp.tracking.loggers import has_login

    if not has_login():
        raise FetchError("there is no W&B login: set the environment variable WANDB_API_KEY or run `wandb login`")
    import wandb

    try:
        return list(wandb.Api().runs(project, filters={"group": study}))
    except Exception as error:  # W&B's own, requests' and GraphQL's
        raise Refused(f"W&B refused: {type(error).__name__}: {error}") from error


def fetch(project: str, study: str, runs_root: Path) -> tuple[Path, list[str], list[str]]:
    """(the study's directory, a line on each run that is settled, a line on each that could not be fetched).

    Raises:
        FetchError: no login, or there is no such study there.
    """
    if project.count("/") != 1 or not all(project.split("/")):
        raise FetchError(f"{project!r}: must be ENTITY/PROJECT")
    if not study or study.startswith(".") or "/" in study:
        raise FetchError(f"{study!r}: must be the name of a study, without a slash")
    runs = remote_runs(project, study)
    if not runs:
        raise FetchError(f"{project} has no runs of the study (W&B group) {study!r}")
    settled: list[str] = []
    failed: list[str] = []
    for run in runs:
        try:
            settled.append(fetch_run(run, runs_root / study))
        except Exception as error:  # W&B's own, the network's, the disk's: the others are fetched
            failed.append(f"{run.id}  not fetched: {error if isinstance(error, FetchError | OSError) else repr(error)}")
    return runs_root / study, settled, failed


def local(study: str, runs_root: str | Path = "runs") -> Path:
    """The directory of a study; `wandb:ENTITY/PROJECT/STUDY` is fetched first, anything else is a path already.

    Raises:
        FetchError: as `fetch`, or one of the runs could not be fetched.
    """
    if not study.startswith(PREFIX):
        return Path(study)
    project, _, name = study.removeprefix(PREFIX).rpartition("/")
    directory, _, failed = fetch(project, name, Path(runs_root))
    if failed:
        raise FetchError("; ".join(failed))
    return directory


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        directory, settled, failed = fetch(options.project, options.study, options.runs_root)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, Refused) else 2
    print(*settled, sep="\n")
    print(*failed, sep="\n", file=sys.stderr)
    print(f"for the report:\n  python -m rti_exp.report {options.study} --runs-root {options.runs_root}  ({directory})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
