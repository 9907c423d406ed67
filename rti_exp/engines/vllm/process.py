"""The worker's process and the pipes to it. Everything that it started ends with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rti_exp.engines.base import EngineUnavailable
from rti_exp.processes.line_pipe import LinePipe, end_group, ending

WORKER = Path(__file__).with_name("worker.py")
SHOWN_LINES = 12
"""Last lines of the worker's log that an error quotes."""


class WorkerEnded(EngineUnavailable):
    """The worker's process has ended or was killed; a new one may succeed."""


class WorkerProcess:
    """One worker. `kill` ends it; so does dropping the last reference to this object.

    Args:
        python: the interpreter that has vLLM.
        environment: variables that are set for the worker in addition to this process's own.

    Raises:
        EngineUnavailable: the interpreter cannot be started.
    """

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115  (open as long as the process runs)
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
        """The worker's answer to a call.

        Raises:
            WorkerEnded: no answer in time, or the process has ended. This worker cannot be used again.
            EngineUnavailable: the call raised in the worker.
        """
        name = call["call"]
        try:
            deadline = time.monotonic() + seconds
            self._pipe.send(json.dumps(call).encode("ascii") + b"\n", deadline)
            answer = json.loads(self._pipe.receive(deadline))
        except TimeoutError:
            self.kill()
            raise WorkerEnded(f"vLLM's {name} took longer than engine.timeout={seconds:g} s") from None
        except (BrokenPipeError, EOFError):
            reason = f"vLLM's process ended in {name}{ending(self.process, 2.0)}{self._last_lines()}"
            self.kill()
            raise WorkerEnded(reason) from None
        if "error" in answer:
            raise EngineUnavailable(f"vLLM's {name} raised {answer['error']}")
        return answer

    def _last_lines(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        return "; its last lines:\n" + "\n".join(lines) if lines else ""


def _kill(process: subprocess.Popen[bytes], log: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # in a fork of the process that started it
        return
    end_group(process)
    for stream in (process.stdin, process.stdout, log):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
