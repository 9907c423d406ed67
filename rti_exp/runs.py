"""The directory of one run: its identity, its status, its records; written by one process, read by any.

    <runs root>/<study>/<run key>/
        config.yaml          as resolved
        status.json          replaced atomically, so that a reader sees a whole one or the one before
        metrics.jsonl        a row per iteration and per evaluation
        interventions.jsonl  every attempt; stops at `Run.limit_bytes`, and says so in its last line
        rollouts.jsonl       sampled groups; stops likewise
        checkpoints/         the newest two
        job.log              what a sweep's child printed

All JSON is strict: infinity is the string "inf", NaN is null. This module imports no torch.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from rti_exp.jsonlines import LineFile, plain, read_lines, write_atomically

STATES = ("running", "done", "failed", "interrupted")
COMPUTE = {
    "generated_tokens": ("tokens/generated", "tokens/role_generated"),
    "scored_tokens": ("tokens/scored", "tokens/role_scored"),
    "trained_tokens": ("tokens/trained",),
    "seconds": ("time/iteration",),
}
"""What `status.compute` sums up, by the columns of the train rows."""


class RunLocked(Exception):
    """Another process is working in the run directory."""


class RunUnwritable(Exception):
    """The run directory cannot be made or written."""


def run_key(identity: Mapping[str, Any]) -> str:
    """A short hash of a normalised config without its volatile keys: 12 hexadecimal digits."""
    text = json.dumps(plain(identity), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def error_record(error: BaseException) -> dict[str, str]:
    """{type, message, traceback} for `status.error`."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def death_record(kind: str, message: str, *, log: Path) -> dict[str, str]:
    """The same for a process that could not write its own; its log's end stands for the traceback."""
    try:
        tail = log.read_bytes()[-4000:].decode("utf-8", "replace")
    except OSError:
        tail = ""
    return {"type": kind, "message": message, "traceback": tail}


def settle(directory: Path, *, state: str, error: Mapping[str, str] | None, identity: Mapping[str, Any]) -> None:
    """Write the last state of a run whose process is gone and has not. Nothing is written where another
    process works, or where the disk does not take it."""
    try:
        lock = _lock(directory)
    except (RunLocked, RunUnwritable):
        return
    try:
        status = read_status(directory) or {
            **identity,
            "iterations_done": 0,
            "started": None,
            "wandb_id": None,
            "compute": dict.fromkeys(COMPUTE, 0),
        }
        if status.get("state") not in ("done", "failed", "interrupted") or status.get("ended") is None:
            _write_status(directory, {**status, "state": state, "ended": now(), "error": error})
    except OSError:
        return
    finally:
        os.close(lock)


def _write_status(directory: Path, status: Mapping[str, Any]) -> None:
    write_atomically(directory / "status.json", json.dumps(plain(status), indent=2) + "\n")


def read_status(directory: Path) -> dict[str, Any] | None:
    """The status of a run directory; None if it is missing or no JSON object."""
    try:
        status = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return status if isinstance(status, dict) and status.get("state") in STATES else None


def is_done(directory: Path) -> bool:
    """Whether the run in this directory is done; only looks."""
    status = read_status(directory)
    return status is not None and status["state"] == "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run directory as a reader sees it. `status` is None where status.json is missing or torn."""

    directory: Path
    status: Mapping[str, Any] | None
    config: Mapping[str, Any]

    @property
    def state(self) -> str:
        return self.status["state"] if self.status else "missing"

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "metrics.jsonl"))

    def interventions(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "interventions.jsonl"))

    def rollouts(self) -> list[dict[str, Any]]:
        return list(read_lines(self.directory / "rollouts.jsonl"))


def read_config(directory: Path) -> dict[str, Any]:
    """config.yaml of a run directory; empty if it is missing or torn."""
    try:
        config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def load_run(directory: Path) -> RunRecord:
    return RunRecord(directory=directory, status=read_status(directory), config=read_config(directory))


def load_runs(study_dir: Path) -> list[RunRecord]:
    """All run directories of a study, by name; broken ones too."""
    if not study_dir.is_dir():
        return []
    found = (path for path in sorted(study_dir.iterdir()) if path.is_dir() and not path.name.startswith("."))
    return [load_run(path) for path in found if (path / "config.yaml").exists() or (path / "status.json").exists()]


class Run:
    """The directory of one run, held by this process until `close`.

    `listeners` are called with every metrics row after it is on disk (W&B, CSV).
    """

    limit_bytes = 256 * 2**20
    """Size cap of interventions.jsonl and of rollouts.jsonl, each."""

    def __init__(self, directory: Path, *, key: str, study: str, patience: float = 0.0) -> None:
        self.directory = directory
        self.key = key
        self.study = study
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._lock = _lock(directory, patience)
        self._evaluated: set[int] = set()
        try:
            self.checkpoints.mkdir(exist_ok=True)
            self._open_files()
        except OSError as error:
            raise RunUnwritable(f"{directory}: cannot be written ({error.strerror})") from error
        self.status: dict[str, Any] = read_status(directory) or {}
        self._recount()

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

        Ask `is_done` first: this call marks a done run as running again. `fresh` removes what is there; `patience` are
        seconds to wait for another process that holds the directory.

        Raises:
            RunLocked: another process holds it.
            RunUnwritable: the folder cannot be made or written.
        """
        run = cls(directory, key=key, study=study, patience=patience)
        if fresh:
            run._clear()
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
        for file in self._files:
            file.close()
        for path in self.directory.iterdir():
            if path.name in ("job.log", ".lock"):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.checkpoints.mkdir()
        self._open_files()
        self.status = {}
        self._recount()

    def _recount(self) -> None:
        self.iterations_done = 0
        self.compute: dict[str, float] = dict.fromkeys(COMPUTE, 0)
        self._evaluated = set()
        for row in read_lines(self.metrics.path):
            self._count(row)

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
        self.update(iterations_done=self.iterations_done, compute=self.compute)
        for listener in self.listeners:
            listener(row)

    def append_intervention(self, record: Mapping[str, Any]) -> None:
        self.interventions.append([record])

    def append_interventions(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Several at once, with one wait for the disk."""
        self.interventions.append(records)

    def append_rollouts(self, record: Mapping[str, Any]) -> None:
        self.rollouts.append([record])

    def truncate_after(self, iteration: int) -> None:
        """Drop all rows of later iterations: a run that goes on from a checkpoint writes them anew."""
        for file in self._files:
            file.keep(lambda row: int(row["iteration"]) <= iteration)
        self._recount()
        self.update(iterations_done=self.iterations_done, compute=self.compute)

    def update(self, **fields: Any) -> None:
        """Set fields of status.json."""
        self.status = {**self.status, **fields}
        self._write_status()

    def finish(self, state: str, error: BaseException | None = None) -> None:
        """Write the run's last state: done, failed or interrupted."""
        self.update(state=state, ended=now(), error=None if error is None else error_record(error))

    def _write_status(self) -> None:
        _write_status(self.directory, self.status)

    def close(self) -> None:
        """Let go of the directory."""
        for file in self._files:
            file.close()
        os.close(self._lock)


def _lock(directory: Path, patience: float = 0.0) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunUnwritable(f"{directory}: cannot be made or written ({error.strerror})") from error
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.1)
                continue
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise RunLocked(f"{directory}: another process (pid {holder}) is working in this directory") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
