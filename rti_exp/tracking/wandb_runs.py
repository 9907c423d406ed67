"""Run directories from W&B: downloads the files that `logger=wandb` uploaded for the runs of a study."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rti_exp.runs import REPORT_FILES, is_run_key, read_status
from rti_exp.tracking.wandb_login import NO_LOGIN, has_login

RUNNING = ("running", "pending")
PREFIX = "wandb:"


class RemoteFile(Protocol):
    """The methods used of `wandb.apis.public.File`."""

    name: str

    def download(self, root: str = ".", replace: bool = False) -> Any: ...


class RemoteRun(Protocol):
    """The methods used of `wandb.apis.public.Run`."""

    id: str
    state: str

    def files(self) -> Iterable[RemoteFile]: ...


class FetchError(Exception):
    """A study or run that cannot be fetched; the message says why."""


class Refused(FetchError):
    """W&B, or the network, refused the request."""


def run_files(run: RemoteRun) -> tuple[str, list[RemoteFile]]:
    """(run key, files of the run directory) of a W&B run. All other files are ignored, whatever their names.

    Raises:
        FetchError: the run has no such files, or those of several run directories.
    """
    pattern = re.compile(r"([^/]+)/(" + "|".join(re.escape(name) for name in REPORT_FILES) + ")")
    matches = [(match[1], file) for file in run.files() if (match := pattern.fullmatch(file.name))]
    files = [(key, file) for key, file in matches if is_run_key(key)]
    keys = {key for key, _ in files}
    if len(keys) != 1:
        content = f"files of {len(keys)} run directories" if keys else "no files of a run directory (logger.files=true)"
        raise FetchError(f"the W&B run {run.id} has {content}")
    return keys.pop(), [file for _, file in files]


def fetch_run(run: RemoteRun, study: Path) -> str:
    """Downloads one run to `<study>/<run key>`, completely or not at all; returns a line that says what was done.

    Raises:
        FetchError: as `run_files`, or the files do not belong to one run.
        OSError: the files cannot be written.
    """
    if run.state in RUNNING:
        return f"{run.id}  left out: still running"
    key, files = run_files(run)
    target = study / key
    if target.exists():
        return f"{key}  already here: left unchanged"
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
        FetchError: there is no login.
        Refused: W&B refused.
    """
    if not has_login():
        raise FetchError(NO_LOGIN)
    import wandb

    try:
        return list(wandb.Api().runs(project, filters={"group": study}))
    except Exception as error:  # W&B's own errors, and those of requests and GraphQL
        raise Refused(f"W&B refused: {type(error).__name__}: {error}") from error


def fetch_study(project: str, study: str, runs_root: Path) -> tuple[list[str], list[str]]:
    """Fetches the runs of a study; returns a line for each settled run, and one for each failed run.

    Raises:
        FetchError: invalid names, no login, or no such study.
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
        except Exception as error:  # of W&B, the network or the disk; the other runs are still fetched
            failed.append(f"{run.id}  not fetched: {error if isinstance(error, FetchError | OSError) else repr(error)}")
    return settled, failed


def study_directory(study: str, runs_root: str | Path = "runs") -> Path:
    """The directory of a study, for notebooks. `wandb:ENTITY/PROJECT/STUDY` is fetched first; any other text is a path.

    Raises:
        FetchError: as `fetch_study`, or a run could not be fetched.
    """
    if not study.startswith(PREFIX):
        return Path(study)
    project, _, name = study.removeprefix(PREFIX).rpartition("/")
    _, failed = fetch_study(project, name, Path(runs_root).expanduser())
    if failed:
        raise FetchError("; ".join(failed))
    return Path(runs_root).expanduser() / name
