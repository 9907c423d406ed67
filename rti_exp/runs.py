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

import contextlib
import dataclasses
import datetime
import enum
import fcntl
import hashlib
import json
import math
import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

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


def plain(value: Any) -> Any:
    """`value` as what strict JSON can hold: infinities as "inf" and "-inf", NaN as None.

    Raises:
        TypeError: a type that has no JSON form.
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and torch scalars and arrays, without importing either
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: Any) -> str:
    """`value` as one line of strict JSON."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def run_key(identity: Mapping[str, Any]) -> str:
    """A short hash of a normalised config without its volatile keys: 12 hexadecimal digits."""
    text = json.dumps(plain(identity), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`; whatever goes wrong, the file holds the old text or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # gone after a success; on a broken disk the first error counts
            temporary.unlink()


def error_record(error: BaseException) -> dict[str, str]:
    """{type, message, traceback} for `status.error`."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


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


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl file, without a torn last line and without the line that tells of the size cap.

    Raises:
        ValueError: a line other than the last is no JSON object; the message names file and line.
    """
    if not path.is_file():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: not a JSON object")
            if not row.get("capped"):
                yield row


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


class LineFile:
    """Appends whole lines of strict JSON, each append on disk before it returns.

    A torn last line, left by a killed process or a full disk, is cut off. With a limit, the first record
    that would pass it is dropped and one line {"capped": true, ...} is written in its place; what comes
    later is dropped.
    """

    def __init__(self, path: Path, *, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.capped = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = self._cut_torn_line()

    def _cut_torn_line(self) -> int:
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        end = size
        tail = b""
        while end > 0:
            start = max(0, end - 65536)
            tail = os.pread(self._descriptor, end - start, start)
            newline = tail.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._descriptor, end)
        last = tail[: tail.rfind(b"\n")].rpartition(b"\n")[2]
        self.capped = last.startswith(b'{"capped": true')
        return end

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if self.capped:
            return
        chunk = b""
        for row in rows:
            line = (to_json(row) + "\n").encode("utf-8", "backslashreplace")
            if self.limit_bytes is not None and self._size + len(chunk) + len(line) > self.limit_bytes:
                note = {"capped": True, "iteration": row.get("iteration"), "limit_bytes": self.limit_bytes}
                chunk += (to_json(note) + "\n").encode()
                self.capped = True
                break
            chunk += line
        try:
            written = 0
            while written < len(chunk):
                written += os.pwrite(self._descriptor, chunk[written:], self._size + written)
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)  # a full disk must not leave half a line
            raise
        self._size += len(chunk)

    def keep(self, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Drop the rows that are not wanted; the file is replaced as a whole."""
        rows = list(read_lines(self.path))
        kept = [row for row in rows if wanted(row)]
        if len(kept) == len(rows) and not self.capped:
            return
        write_atomically(self.path, "".join(to_json(row) + "\n" for row in kept))
        self.close()
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._size = self._cut_torn_line()

    def close(self) -> None:
        os.close(self._descriptor)


class Run:
    """The directory of one run, held by this process until `close`.

    `listeners` are called with every metrics row after it is on disk (W&B, CSV).
    """

    limit_bytes = 256 * 2**20
    """Size cap of interventions.jsonl and of rollouts.jsonl, each."""

    def __init__(self, directory: Path, *, key: str, study: str) -> None:
        self.directory = directory
        self.key = key
        self.study = study
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []
        self._lock = _lock(directory)
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
    ) -> Self:
        """Lock the directory, write the config, and mark the run as running.

        Ask `is_done` first: this call marks a done run as running again. `fresh` removes what is there.

        Raises:
            RunLocked: another process holds it.
            RunUnwritable: the folder cannot be made or written.
        """
        run = cls(directory, key=key, study=study)
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
            return
        self.iterations_done = max(self.iterations_done, int(row["iteration"]))
        for name, columns in COMPUTE.items():
            self.compute[name] += sum(row.get(column) or 0 for column in columns)

    def evaluated(self, iteration: int) -> bool:
        """Whether there is an evaluation row of this iteration (0: before the first)."""
        return iteration in self._evaluated

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a row ({"kind": "train" | "eval", "iteration": ...}), and bring the status up to it."""
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
        write_atomically(self.directory / "status.json", json.dumps(plain(self.status), indent=2) + "\n")

    def close(self) -> None:
        """Let go of the directory."""
        for file in self._files:
            file.close()
        os.close(self._lock)


def _lock(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunUnwritable(f"{directory}: cannot be made or written ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise RunLocked(f"{directory}: another process (pid {holder}) is working in this directory") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
