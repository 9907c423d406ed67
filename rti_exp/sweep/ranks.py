"""The ranks of one job: the reason of the rank that broke is recorded, and the others end.

A broken rank writes its error into the run directory and then waits for rank 0, which records it as the run's:
Lightning kills rank 0 within seconds once another rank has ended. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rti_exp.runs.bounded import bounded, read_text
from rti_exp.runs.json_lines import write_atomically
from rti_exp.runs.redaction import redacted_data
from rti_exp.runs.status import error_record

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 10.0
"""How long rank 0 waits for the reason of a rank that it has lost."""
STAY_SECONDS = 60.0
"""How long a broken rank waits for rank 0, with which it ends."""
FIELDS = ("type", "message", "traceback")
_LOST_PEER = re.compile(r"gloo|nccl|process ?group|tcpstore|by peer|broken pipe|socket", re.IGNORECASE)
_ASKED_FOR = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)


class RankFailed(Exception):
    """Another rank broke. `record` is its error, for the run's status."""

    def __init__(self, record: dict[str, str]) -> None:
        super().__init__(f"{record['type']}: {record['message']}")
        self.record = record


def lost_a_peer(error: BaseException) -> bool:
    """Whether a collective operation failed, as it does on every rank once one of them is gone."""
    distributed = any(cls.__name__ == "DistError" for cls in type(error).__mro__)
    return distributed or (isinstance(error, RuntimeError) and _LOST_PEER.search(str(error)) is not None)


def death(code: int, process: str) -> tuple[str, str]:
    """The type and the message of the error of a process that ended with this code, other than 0, and no word."""
    if code > 0:
        return "Exited", f"{process} ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (kill -9, or the machine ran out of memory)" if name == "SIGKILL" else ""
    return "Killed", f"{process} was ended by {name}{hint}"


def rank_name() -> str:
    """This process's rank as its launcher counts: torchrun, Lightning or SLURM."""
    node = os.environ.get("NODE_RANK") or "0"
    local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_PROCID") or "0"
    return os.environ.get("RANK") or (local if node == "0" else f"{node}.{local}")


@contextlib.contextmanager
def reporting(directory: Path) -> Iterator[None]:
    """For ranks other than 0: an error inside is written for rank 0. Then this rank waits to end with it."""
    try:
        yield
    except BaseException as error:
        traceback.print_exc()
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            if lost_a_peer(error):  # the rank that is gone has the reason
                time.sleep(STAY_SECONDS)
            with contextlib.suppress(OSError):
                report(directory, rank_name(), error)
        time.sleep(STAY_SECONDS)
        raise


def report(directory: Path, rank: str, error: BaseException) -> None:
    """
    Raises:
        OSError: the error cannot be written.
    """
    record = error_record(error)
    record["message"] = f"rank {rank}: {record['message']}"
    write_atomically(directory / f"rank-{rank}.json", json.dumps(redacted_data(record)) + "\n")


def reported(directory: Path) -> dict[str, str] | None:
    """The error that a rank has written; the first by name, None without one."""
    for path in sorted(directory.glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            record = bounded(json.loads(read_text(path)))
            return {name: str(record[name]) for name in FIELDS}
    return None


class OtherRanks:
    """Rank 0's view of the others. `trainer` is Lightning's, once there is one; it may have started them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trainer: Any = None
        for path in directory.glob("rank-*.json"):  # of an earlier attempt
            path.unlink(missing_ok=True)

    @property
    def children(self) -> Sequence[Any]:
        """The processes of ranks 1, 2, ... that Lightning has started."""
        launcher = None if self.trainer is None else self.trainer.strategy.launcher
        return getattr(launcher, "procs", None) or ()

    def failure(self, patience: float = 0.0) -> dict[str, str] | None:
        """Why another rank broke, as soon as that is known; None if it is not within `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            record = reported(self.directory) or self._death()
            if record is not None or time.monotonic() >= deadline:
                return record
            time.sleep(POLL_SECONDS)

    def _death(self) -> dict[str, str] | None:
        for rank, process in enumerate(self.children, start=1):
            code = process.poll()
            if code and code not in _ASKED_FOR:
                kind, message = death(code, f"rank {rank}")
                return {"type": kind, "message": message, "traceback": ""}
        return None

    @contextlib.contextmanager
    def watched(self, broken: Callable[[dict[str, str]], None]) -> Iterator[None]:
        """Inside, `broken` is called in a thread when another rank breaks: this one may hang in a collective operation.

        Raises:
            RankFailed: this rank failed because it lost another one, whose reason is known.
        """
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_SECONDS):
                record = self.failure()
                if record is not None:
                    broken(record)
                    return

        thread = threading.Thread(target=watch, name="other-ranks", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            ended.set()
            thread.join()
            record = None
            if lost_a_peer(error):
                record = self.failure(PATIENCE_SECONDS)
            elif not isinstance(error, Exception):  # a signal, which torchrun sends when a rank has ended
                record = self.failure()
            if record is not None:
                raise RankFailed(record) from error
            raise
        finally:
            ended.set()
            thread.join()
