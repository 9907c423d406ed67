"""Lines to and from a process of ours, each within a deadline, and that process's end."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time


class LinePipe:
    """Two open descriptors, which it makes non-blocking and does not close.

    Args:
        calls: written to.
        answers: read from.
        largest: bytes of the longest answer; None is any.
    """

    def __init__(self, calls: int, answers: int, *, largest: int | None = None) -> None:
        self._calls, self._answers, self._largest = calls, answers, largest
        os.set_blocking(calls, False)
        os.set_blocking(answers, False)
        self._rest = b""

    def send(self, line: bytes, deadline: float) -> None:
        """
        Args:
            line: its end included.
            deadline: on `time.monotonic`, in seconds.

        Raises:
            TimeoutError: not all of it was taken by then.
            BrokenPipeError: nobody reads.
        """
        view = memoryview(line)
        while view:
            _wait(self._calls, deadline, writing=True)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._calls, view) :]

    def receive(self, deadline: float) -> bytes:
        """The next line, without its end.

        Raises:
            TimeoutError: it was not there by `deadline`.
            EOFError: nobody writes any more.
            ValueError: it is longer than allowed.
        """
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            _wait(self._answers, deadline, writing=False)
            try:
                part = os.read(self._answers, 2**20)
            except BlockingIOError:
                continue
            if not part:
                raise EOFError
            parts.append(part)
            size += len(part)
            if self._largest is not None and size > self._largest:
                raise ValueError(f"more than {self._largest} bytes")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _wait(descriptor: int, deadline: float, *, writing: bool) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
    if left <= 0 or not poll.poll(math.ceil(left * 1000)):
        raise TimeoutError


def ending(process: subprocess.Popen[bytes], seconds: float) -> str:
    """How it ended, as the end of a sentence (" (SIGKILL)"); waits so long for its end, and is "" without one."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    code = process.returncode
    if code is None:
        return ""
    return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and all that it has started; it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
