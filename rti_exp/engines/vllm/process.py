"""The worker's process and the pipes to it. Its end is the end of all that it has started."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rti_exp.engines.base import EngineUnavailable

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
        self._calls, self._answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._calls, False)
        self._rest = b""
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
            self._send(json.dumps(call).encode("ascii") + b"\n", deadline)
            answer = json.loads(self._receive(deadline))
        except TimeoutError:
            self.kill()
            raise WorkerEnded(f"vLLM's {what} took longer than engine.timeout={seconds:g} s") from None
        except (BrokenPipeError, EOFError):
            reason = f"vLLM's process ended in {what}{self._how()}{self._told()}"
            self.kill()
            raise WorkerEnded(reason) from None
        if "error" in answer:
            raise EngineUnavailable(f"vLLM's {what} raised {answer['error']}")
        return answer

    def _how(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        code = self.process.returncode
        if code is None:
            return ""
        return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"

    def _told(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").splitlines()[-SHOWN_LINES:]
        return "; its last lines:\n" + "\n".join(lines) if lines else ""

    def _send(self, line: bytes, deadline: float) -> None:
        view = memoryview(line)
        while view:
            _wait(self._calls, deadline, writing=True)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._calls, view) :]

    def _receive(self, deadline: float) -> bytes:
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            _wait(self._answers, deadline, writing=False)
            part = os.read(self._answers, 2**20)
            if not part:
                raise EOFError
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _wait(descriptor: int, deadline: float, *, writing: bool) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    if left <= 0 or not poll.poll(math.ceil(left * 1000)):
        raise TimeoutError


def _kill(process: subprocess.Popen[bytes], log: IO[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the process that began it
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    streams: Sequence[IO[bytes] | None] = (process.stdin, process.stdout, log)
    for stream in streams:
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
