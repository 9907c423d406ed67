"""The identity and state of a run directory: its key, its lock, and its status.json, written atomically.

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

from rti_exp.runs.bounded import bounded, read_text, whole_number
from rti_exp.runs.json_lines import plain, write_atomically
from rti_exp.runs.redaction import redacted_data

STATES = ("running", "done", "failed", "interrupted")
COMPUTE = {
    "generated_tokens": ("tokens/generated", "tokens/role_generated"),
    "scored_tokens": ("tokens/scored", "tokens/role_scored"),
    "trained_tokens": ("tokens/trained",),
    "seconds": ("time/iteration",),
}
"""The sums in `status.compute`, by the columns of the train rows."""


class RunDone(Exception):
    """The run in the directory is done: there is nothing left to run."""


class RunLocked(Exception):
    """Another process is working in the run directory."""


class RunBroken(Exception):
    """A run's records are corrupt, so the run cannot resume; the message names the file and the remedy."""


class RunUnwritable(Exception):
    """The run directory cannot be created or written."""


def run_key(identity: Mapping[str, Any]) -> str:
    """A short hash of a normalised config without its volatile keys: 12 hexadecimal digits."""
    text = json.dumps(plain(identity), sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_run_key(text: str) -> bool:
    """Whether `text` has the form of a run key."""
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
    """The error of a process that could not record it; the end of its log replaces the traceback."""
    try:
        tail = log.read_bytes()[-4000:].decode("utf-8", "replace")
    except OSError:
        tail = ""
    return {"type": kind, "message": message, "traceback": tail}


def settle(directory: Path, *, state: str, error: Mapping[str, str] | None, identity: Mapping[str, Any]) -> None:
    """Writes the final state of a run whose process ended without doing so.

    Nothing is written if another process holds the directory or the disk refuses the file.
    """
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
    write_atomically(directory / "status.json", json.dumps(redacted_data(plain(status)), indent=2) + "\n")


def read_status(directory: Path) -> dict[str, Any] | None:
    """The status of a run directory; None if it is missing or invalid."""
    try:
        status = bounded(json.loads(read_text(directory / "status.json")))
        whole_number(status.get("iterations_done") or 0)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return status if status.get("state") in STATES else None


def is_done(directory: Path) -> bool:
    """Whether the run in this directory is done. Read-only."""
    status = read_status(directory)
    return status is not None and status["state"] == "done"


def lock(directory: Path, patience: float = 0.0) -> int:
    """Locks the directory for this process, creating it if needed; returns the descriptor to close.

    Raises:
        RunLocked: another process still holds it after `patience` seconds.
        RunUnwritable: it cannot be created or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunUnwritable(f"{directory}: cannot be created or written ({error.strerror})") from error
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
    """Whether a process is working in the directory. Read-only.

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
