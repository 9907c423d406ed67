"""The directory of one run while a process works in it. This module imports no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from rti_exp.runs.disk import Disk, Job
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
    stage_status,
    write_status,
)


class Run:
    """The directory of one run, held by this process until `close`.

    Rows and the status that goes with them are written at once; `disk` waits beside the caller until they are on it.
    An error there is raised by the next append, and by `finish("done")`; what it was about is taken back.
    `listeners` are called with every metrics row after it is written (W&B, CSV).
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
        self.disk = Disk()
        self._publishing: Job | None = None
        try:
            if fresh:
                self._clear()
            self.checkpoints.mkdir(exist_ok=True)
            for left in directory.glob(".*.tmp"):  # of a process that was killed amid a write
                left.unlink()
            self._open_files()
            self.status: dict[str, Any] = read_status(directory) or {}
            self._recount()
        except OSError as error:
            self._let_go()
            raise RunUnwritable(f"{error.filename or directory}: cannot be written ({error.strerror})") from error
        except RunBroken:
            self._let_go()
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
        """Lock the directory, write the config, and mark the run as running.

        `fresh` removes what is there, a done run too; `patience` are seconds to wait for another process that holds
        the directory.

        Raises:
            RunDone: the run is done, perhaps since the lock was waited for. Nothing is changed.
            RunLocked: another process holds it.
            RunBroken: its records cannot be gone on from; nothing is changed.
            RunUnwritable: the folder cannot be made or written.
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
        limit, disk = self.limit_bytes, self.disk
        self.metrics = LineFile(self.directory / "metrics.jsonl", disk=disk)
        self.interventions = LineFile(self.directory / "interventions.jsonl", limit_bytes=limit, disk=disk)
        self.rollouts = LineFile(self.directory / "rollouts.jsonl", limit_bytes=limit, disk=disk)

    @property
    def _files(self) -> tuple[LineFile, LineFile, LineFile]:
        return (self.metrics, self.interventions, self.rollouts)

    def _clear(self) -> None:
        (self.directory / "status.json").unlink(missing_ok=True)  # first: what is half removed must not look done
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
            self._evaluated.add(int(row["iteration"]))
        if row.get("kind") != "train":
            return
        self.iterations_done = max(self.iterations_done, int(row["iteration"]))
        for name, columns in COMPUTE.items():
            self.compute[name] += sum(row.get(column) or 0 for column in columns)

    def evaluated(self, iteration: int) -> bool:
        """Whether there is an evaluation row of this iteration (0: before the first)."""
        return iteration in self._evaluated

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a row ({"kind": "train" | "eval" | "probe", "iteration": ...}), and bring the status up to it."""
        self.metrics.append([row])
        self._count(row)
        if row.get("kind") == "train":  # others change nothing of it
            self._stage_status()
        for listener in self.listeners:
            listener(row)

    def append_intervention(self, record: Mapping[str, Any]) -> None:
        self.interventions.append([record])

    def append_interventions(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Several at once."""
        self.interventions.append(records)

    def append_rollouts(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Several groups at once."""
        self.rollouts.append(records)

    def truncate_after(self, iteration: int) -> None:
        """Drop all rows of later iterations: a run that goes on from a checkpoint writes them anew."""
        for file in self._files:
            try:
                file.keep(lambda row: int(row["iteration"]) <= iteration)
            except (ValueError, TypeError, KeyError) as error:
                raise _broken(file.path, error) from error
        self._recount()
        self.update(**self._counts)

    @property
    def _counts(self) -> dict[str, Any]:
        return {"iterations_done": self.iterations_done, "compute": self.compute}

    def _stage_status(self) -> None:
        """The same as `update`, but the status takes its name once it is on the disk, as the rows before it are."""
        self.disk.wait(self._publishing)
        self.status = {**self.status, **self._counts}
        staged = stage_status(self.directory, self.status)
        self._publishing = self.disk.submit(staged.publish, staged.discard)

    def update(self, **fields: Any) -> None:
        """Set fields of status.json; it is on the disk after that."""
        self.disk.drain()  # one that is to be replaced
        self.status = {**self.status, **fields}
        self._write_status()

    def finish(self, state: str, error: BaseException | None = None) -> None:
        """Write the run's last state: done, failed or interrupted.

        Raises:
            OSError: the disk does not take it, or has not taken what a run that is done must have.
        """
        if state == "done":
            self.disk.flush()
        self.disk.drain()
        if self.disk.error is not None:  # what it did not take does not count
            with contextlib.suppress(OSError, RunBroken):
                self._recount()
            self.update(**self._counts)
        self.update(state=state, ended=now(), error=None if error is None else error_record(error))

    def _write_status(self) -> None:
        write_status(self.directory, self.status)

    def close(self) -> None:
        """Let go of the directory, once the disk has what is written."""
        self.disk.close()
        for file in self._files:
            file.close()
        os.close(self._lock)

    def _let_go(self) -> None:
        self.disk.close()
        os.close(self._lock)


def _broken(path: Path, error: Exception) -> RunBroken:
    what = f"a row without {error}" if isinstance(error, KeyError) else str(error)
    where = "" if str(path) in what else f"{path}: "
    return RunBroken(f"{where}{what}; the run cannot go on from it: restore the file, or start over with fresh=true")
