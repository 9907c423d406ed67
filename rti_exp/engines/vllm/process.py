"""The worker's process and the pipes to it. Its end is the end of all that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rti_exp.engines.base import EngineUnavailable
from rti_exp.processes.line_pipe import LinePipe, end_group, ending

WORKER = Path(__file__).with_name("worker.py")
SHOWN_LINES = 12
"""Last lines of the worker's log that an error repeats."""


class WorkerEnded(EngineUnavailable):
    """The worker's process has ended or was ended; a new one may do better."""


class WorkerProcess:
    """One worker.

    Args:
        python: the interpreter that has vLLM.
        environment: variables that are set for it besides those of this process.

    Raises:
        EngineUnavailable: there is no such interpreter.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115  (as long as the process)
        try:
            self.process = subprocess.Popen(
                [python, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise EngineUnavailable(f"engine.python={python!r}: cannot be started ({error.strerror})") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._pipe = LinePipe(self.process.stdin.fileno(), self.process.stdout.fileno())
        self.kill = weakref.finalize(self, _kill, self.process, self._log, os.getpid())

    def ask(self, call: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """
        Raises:
            WorkerEnded: no answer in time, or the process has ended; it is of no more use.
            EngineUnavailable: it answered that the call raised.
        """
        what = call["call"]
        try:
            deadline = time.monotonic() + seconds
            self._pipe.send(json.dumps(call).encode("ascii") + b"\n", deadline)
            answer = json.loads(self._pipe.receive(deadline))
        except TimeoutError:
            self.kill()
            raise WorkerEnded(f"vLLM's {what} took longer than engine.timeout={seconds:g} s") from None
        except (BrokenPipeError, EOFError):
            reason = f"vLLM's process ended in {what}{ending(self.process, 2.0)}{self._told()}"
            self.kill()
            raise WorkerEnded(reason) from None
        if "error" in answer:
            raise EngineUnavailable(f"vLLM's {what} raised {answer['error']}")
        return answer

    def _told(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        return "; its last lines:\n" + "\n".join(lines) if lines else ""


def _kill(process: subprocess.Popen[bytes], log: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the process that began it
        return
    end_group(process)
    streams: Sequence[IO[bytes] | None] = (process.stdin, process.stdout, log)
    for stream in streams:
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
