"""The Java process of the games: one for each Python process, with bounded calls, ending with its parent.

The package `textworld_express` starts a process for each game and reads from it without a time-out. Here all games
of a Python process share one process. A call that takes too long, or a process that has ended, is an
`InfrastructureError`; the next call starts a new process. The process reads its standard input and ends with it, so
that it never outlives its parent.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rti_exp.envs.base import InfrastructureError

Result = TypeVar("Result")

START_SECONDS = 60.0
REST_SECONDS = 30.0
"""After a failed start, the wait before the next try: a broken Java then fails once, not once for each game."""
OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaProcess:
    """A running process, and a gateway to its objects. `seconds` is how long a call may take."""

    def __init__(self, seconds: float) -> None:
        from py4j.java_gateway import (  # pyright: ignore[reportMissingImports]
            GatewayParameters,
            JavaGateway,
            find_jar_path,
        )
        from textworld_express.constants import JAR_PATH  # pyright: ignore[reportMissingImports]

        _quiet()
        jars = os.pathsep.join(os.path.abspath(path) for path in (find_jar_path(), str(JAR_PATH)))
        self.process = subprocess.Popen(
            [shutil.which("java") or "java", *OPTIONS, "-cp", jars, "py4j.GatewayServer", "--die-on-broken-pipe", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(JAR_PATH).parent,  # a game reads a file from this folder
            start_new_session=True,
        )
        try:
            parameters = GatewayParameters(port=self._port(), read_timeout=seconds, enable_memory_management=False)
            self.gateway: Any = JavaGateway(gateway_parameters=parameters)
        except BaseException:
            self.kill()
            raise
        self._seconds = seconds
        self.unused: list[Any] = []
        """Objects without references in Python; the Java process drops them with the next call."""

    def _port(self) -> int:
        """The number that the process prints when it listens.

        Raises:
            InfrastructureError: it prints none in time.
        """
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
        line = self.process.stdout.readline() if ready else b""
        if not line.strip().isdigit():
            raise InfrastructureError(
                f"java did not start within {START_SECONDS:.0f} s: {line.decode(errors='replace')!r}"
                if not ready
                else f"java ended at its start with exit code {self.process.wait(timeout=5)}"
            )
        return int(line)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def call(self, function: Callable[[], Result]) -> Result:
        """`function()`, which calls into the process.

        Raises:
            InfrastructureError: no answer in time, the process has ended, or a game raised an exception.
        """
        from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingImports]

        began = time.monotonic()
        try:
            return function()
        except Py4JJavaError as error:
            raise InfrastructureError(f"the game raised {error.java_exception.toString()}") from error
        except (Py4JError, OSError) as error:
            waited = time.monotonic() - began
            ended = self.process.poll()
            self.kill()
            reason = f"gave no answer within {waited:.1f} s" if ended is None else f"ended with exit code {ended}"
            raise InfrastructureError(f"the games' Java process {reason}") from error

    def forget_unused(self) -> None:
        while self.unused:
            self.gateway.detach(self.unused.pop())

    def kill(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


class _NotPy4J(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts


def _quiet() -> None:
    """py4j logs each error that it raises, partly on the root logger."""
    for name in ("", "py4j.java_gateway", "py4j.clientserver"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _NotPy4J) for known in logger.filters):
            logger.addFilter(_NotPy4J())


_lock = threading.RLock()
_running: dict[int, JavaProcess] = {}
_rest_until = 0.0


def running(seconds: float) -> JavaProcess:
    """The Java process of this Python process; started if none is running.

    Raises:
        InfrastructureError: it does not start, or failed to start a moment ago.
    """
    global _rest_until
    with _lock:
        process = _running.get(os.getpid())
        if process is not None and process.alive:
            return process
        if time.monotonic() < _rest_until:
            raise InfrastructureError("java did not start a moment ago")
        try:
            _running[os.getpid()] = JavaProcess(seconds)
        except (InfrastructureError, OSError) as error:
            _rest_until = time.monotonic() + REST_SECONDS
            if isinstance(error, InfrastructureError):
                raise
            raise InfrastructureError(f"java did not start: {error}") from error
        return _running[os.getpid()]


@atexit.register
def close() -> None:
    """End this Python process's Java process, if there is one."""
    process = _running.pop(os.getpid(), None)
    if process is not None:
        process.kill()
