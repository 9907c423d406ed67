"""The directory of one run while a process works in it. This module imports no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from rti_exp.runs.bounded import whole_number
from rti_exp.runs.json_lines import LineFile, read_lines, write_atomically
from rti_exp.runs.status import (
    COMPUTE,
    RunBroken,
    RunDone,
    RunUnwritable,
    error_record,
    lock,
    now,
    read_status,
    write_status,
)


class Run:
    """The directory of one run, held by this process until `close`.

    Rows are written as they come. `sync` waits until they are on the disk: a checkpoint calls it first, so that it
    never claims an iteration whose rows could be lost. `listeners` are called with every metrics row after it is
    written (W&B, CSV).
    """

    limit_bytes = 256 * 2**20
    """Size cap of interventions.jsonl and of rollouts.jsonl, each."""

    def __init__(self, directory: Path, *, key: str, study: str, fresh: bool = False, patience: float = 0.0) -> None:
        self.directory = directory
        self.key = key
        self.study = study
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._lock = lock(directory, patience)
        self._evaluated: set[int] = set()
        try:
            if fresh:
                self._clear()
            self.checkpoints.mkdir(exist_ok=True)
            for leftover in directory.glob(".*.tmp"):  # from a process that was killed during a write
                leftover.unlink()
            self._open_files()
            self.status: dict[str, Any] = read_status(directory) or {}
            self._recount()
        except OSError as error:
            os.close(self._lock)
            raise RunUnwritable(f"{error.filename or directory}: cannot be written ({error.strerror})") from error
        except RunBroken:
            os.close(self._lock)
            raise

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        key: str,
        study: str,
        config: Mapping[str, Any],
        overrides: Sequence[str] = (),
        seed: int = 0,
        fresh: bool = False,
        patience: float = 0.0,
    ) -> Self:
        """Locks the directory, writes the config, and marks the run as running.

        Args:
            fresh: Removes the directory's content first, even of a run that is done.
            patience: Seconds to wait for another process that holds the directory.

        Raises:
            RunDone: the run is done, perhaps by the process that held the lock. Nothing is changed.
            RunLocked: another process holds it.
            RunBroken: its records are corrupt. Nothing is changed.
            RunUnwritable: the folder cannot be created or written.
        """
        run = cls(directory, key=key, study=study, fresh=fresh, patience=patience)
        if run.status.get("state") == "done":
            run.close()
            raise RunDone(f"already done: {directory} (fresh=true starts over)")
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        try:
            write_atomically(directory / "config.yaml", text)
            started = run.status.get("started") or now()
            run.status = {
                "state": "running",
                "run_key": key,
                "study": study,
                "overrides": list(overrides),
                "seed": seed,
                "iterations_done": run.iterations_done,
                "started": started,
                "ended": None,
                "error": None,
                "wandb_id": run.status.get("wandb_id"),
                "compute": run.compute,
                "pid": os.getpid(),
            }
            run._write_status()
        except OSError as error:
            run.close()
            raise RunUnwritable(f"{directory}: cannot be written ({error.strerror})") from error
        return run

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def _open_files(self) -> None:
        self.metrics = LineFile(self.directory / "metrics.jsonl")
        self.interventions = LineFile(self.directory / "interventions.jsonl", limit_bytes=self.limit_bytes)
        self.rollouts = LineFile(self.directory / "rollouts.jsonl", limit_bytes=self.limit_bytes)

    @property
    def _files(self) -> tuple[LineFile, LineFile, LineFile]:
        return (self.metrics, self.interventions, self.rollouts)

    def _clear(self) -> None:
        (self.directory / "status.json").unlink(missing_ok=True)  # first: a half-removed run must not look done
        for path in self.directory.iterdir():
            if path.name in ("job.log", ".lock"):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _recount(self) -> None:
        self.iterations_done = 0
        self.compute: dict[str, float] = dict.fromkeys(COMPUTE, 0)
        self._evaluated = set()
        try:
            for row in read_lines(self.metrics.path):
                self._count(row)
        except (ValueError, TypeError, KeyError) as error:
            raise _broken(self.metrics.path, error) from error

    def _count(self, row: Mapping[str, Any]) -> None:
        if row.get("kind") == "eval":
            self._evaluated.add(whole_number(row["iteration"]))
        if row.get("kind") != "train":
            return
        self.iterations_done = max(self.iterations_done, whole_number(row["iteration"]))
        for name, columns in COMPUTE.items():
            self.compute[name] += sum(row.get(column) or 0 for column in columns)

    def evaluated(self, iteration: int) -> bool:
        """Whether there is an evaluation row of this iteration (0: before the first)."""
        return iteration in self._evaluated

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Appends a row ({"kind": "train" | "eval" | "probe", "iteration": ...}) and updates the status."""
        self.metrics.append([row])
        self._count(row)
        if row.get("kind") == "train":  # other rows do not change the status
            self.update(**self._counts)
        for listener in self.listeners:
            listener(row)

    def append_interventions(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.interventions.append(records)

    def append_rollouts(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.rollouts.append(records)

    def sync(self) -> None:
        """Waits until all rows are on the disk.

        Raises:
            OSError: the disk refused them.
        """
        for file in self._files:
            file.sync()

    def truncate_after(self, iteration: int) -> None:
        """Drops all rows of later iterations: a run that resumes from a checkpoint writes them again."""
        for file in self._files:
            try:
                file.keep(lambda row: whole_number(row["iteration"]) <= iteration)
            except (ValueError, TypeError, KeyError) as error:
                raise _broken(file.path, error) from error
        self._recount()
        self.update(**self._counts)

    @property
    def _counts(self) -> dict[str, Any]:
        return {"iterations_done": self.iterations_done, "compute": self.compute}

    def update(self, **fields: Any) -> None:
        """Sets fields of status.json."""
        self.status = {**self.status, **fields}
        self._write_status()

    def finish(self, state: str, error: BaseException | None = None) -> None:
        """Writes the run's final state: done, failed or interrupted.

        Raises:
            OSError: the disk refused the state, or rows of a run that is done.
        """
        if state == "done":
            self.sync()
        self.update(state=state, ended=now(), error=None if error is None else error_record(error))

    def _write_status(self) -> None:
        write_status(self.directory, self.status)

    def close(self) -> None:
        """Releases the directory."""
        for file in self._files:
            file.close()
        os.close(self._lock)


def _broken(path: Path, error: Exception) -> RunBroken:
    problem = f"a row without {error}" if isinstance(error, KeyError) else str(error)
    where = "" if str(path) in problem else f"{path}: "
    return RunBroken(f"{where}{problem}; the run cannot resume: restore the file, or start over with fresh=true")
