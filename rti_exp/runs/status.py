"""What a run directory says of itself: its key, its lock, its status.json, written atomically.

This module imports no torch.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import re
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rti_exp.runs.disk import Staged
from rti_exp.runs.json_lines import plain, stage, write_atomically

STATES = ("running", "done", "failed", "interrupted")
COMPUTE = {
    "generated_tokens": ("tokens/generated", "tokens/role_generated"),
    "scored_tokens": ("tokens/scored", "tokens/role_scored"),
    "trained_tokens": ("tokens/trained",),
    "seconds": ("time/iteration",),
}
"""What `status.compute` sums up, by the columns of the train rows."""


class RunDone(Exception):
    """The run in the directory is done: there is nothing to go on with."""


class RunLocked(Exception):
    """Another process is working in the run directory."""


class RunBroken(Exception):
    """A run's records cannot be gone on from; the message names the file, and what can be done."""


class RunUnwritable(Exception):
    """The run directory cannot be made or written."""


def run_key(identity: Mapping[str, Any]) -> str:
    """A short hash of a normalised config without its volatile keys: 12 hexadecimal digits."""
    text = json.dumps(plain(identity), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_run_key(text: str) -> bool:
    """Whether `text` is written as a run key is."""
    return re.fullmatch("[0-9a-f]{12}", text) is not None


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
        held = lock(directory)
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
            write_status(directory, {**status, "state": state, "ended": now(), "error": error})
    except OSError:
        return
    finally:
        os.close(held)


def write_status(directory: Path, status: Mapping[str, Any]) -> None:
    write_atomically(directory / "status.json", _status_text(status))


def stage_status(directory: Path, status: Mapping[str, Any]) -> Staged:
    """The same, not yet under its name."""
    return stage(directory / "status.json", _status_text(status))


def _status_text(status: Mapping[str, Any]) -> str:
    return json.dumps(plain(status), indent=2) + "\n"


def read_status(directory: Path) -> dict[str, Any] | None:
    """The status of a run directory; None if it is missing or no status."""
    try:
        status = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return None
    whole = isinstance(status, dict) and isinstance(status.get("iterations_done", 0), int)
    return status if whole and status.get("state") in STATES else None


def is_done(directory: Path) -> bool:
    """Whether the run in this directory is done; only looks."""
    status = read_status(directory)
    return status is not None and status["state"] == "done"


def lock(directory: Path, patience: float = 0.0) -> int:
    """Hold the directory for this process, which is made if it is not there; the descriptor to close.

    Raises:
        RunLocked: another process holds it, also after `patience` seconds.
        RunUnwritable: it cannot be made or written.
    """
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


def is_held(directory: Path) -> bool:
    """Whether a process is working in the directory; only looks.

    Raises:
        OSError: its lock cannot be read.
    """
    try:
        descriptor = os.open(directory / ".lock", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
