"""One process of an environment and the pipes to it. Its end is the end of all that it has started."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.envs import wire
from rti_exp.envs.base import InfrastructureError

LARGEST_ANSWER = 64 * 2**20
"""Bytes of one answer."""


class WorkerLost(InfrastructureError):
    """The environment's process did not answer in time, or has ended."""


class WorkerProcess:
    """One process, and the pipes to it. Its end is the end of all that it has started."""

    def __init__(self) -> None:
        call_read, self._calls = os.pipe()
        self._answers, answer_write = os.pipe()
        life_read, self._life = os.pipe()
        given = (call_read, answer_write, life_read)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rti_exp.envs.worker", *map(str, given)],
                stdin=subprocess.DEVNULL,
                pass_fds=given,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (self._calls, self._answers, self._life):
                os.close(descriptor)
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        os.set_blocking(self._calls, False)
        os.set_blocking(self._answers, False)
        self._rest = b""
        ours = (self._calls, self._answers, self._life)
        self.kill = weakref.finalize(self, _kill, self.process, ours, os.getpid())

    def ask(self, call: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """
        Raises:
            WorkerLost: no answer in time, or the process has ended; it is of no more use.
        """
        deadline = time.monotonic() + seconds
        try:
            self._send(wire.to_line(call), deadline)
            return wire.from_line(self._receive(deadline))
        except TimeoutError:
            raise WorkerLost(f"the environment's {call['what']} took longer than {seconds:g} s") from None
        except (BrokenPipeError, EOFError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
            raise WorkerLost(f"the environment's process ended in {call['what']}{self._how()}") from None
        except ValueError as error:
            raise WorkerLost(f"the environment's process answered {call['what']} with {error}") from None

    def _how(self) -> str:
        code = self.process.returncode
        if code is None:
            return ""
        return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"

    def _send(self, line: bytes, deadline: float) -> None:
        while line:
            _wait(self._calls, deadline, writing=True)
            with contextlib.suppress(BlockingIOError):
                line = line[os.write(self._calls, line) :]

    def _receive(self, deadline: float) -> bytes:
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            _wait(self._answers, deadline, writing=False)
            try:
                part = os.read(self._answers, 65536)
            except BlockingIOError:
                continue
            if not part:
                raise EOFError
            parts.append(part)
            size += len(part)
            if size > LARGEST_ANSWER:
                raise ValueError(f"more than {LARGEST_ANSWER} bytes")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _wait(descriptor: int, deadline: float, *, writing: bool) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    if left <= 0 or not poll.poll(math.ceil(left * 1000)):
        raise TimeoutError


def _kill(process: subprocess.Popen[bytes], descriptors: Sequence[int], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the process that began it
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
