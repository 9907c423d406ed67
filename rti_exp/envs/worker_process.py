"""The process of an isolated environment and the pipes to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.envs import worker_protocol as protocol
from rti_exp.envs.base import InfrastructureError
from rti_exp.processes.line_pipe import LinePipe, end_group, ending

LARGEST_ANSWER = 64 * 2**20
"""Bytes of one answer."""


class WorkerLost(InfrastructureError):
    """The environment's process did not answer in time, or has ended."""


class WorkerProcess:
    """One process and the pipes to it. When it ends, everything that it started ends too."""

    def __init__(self) -> None:
        call_read, self._calls = os.pipe()
        self._answers, answer_write = os.pipe()
        life_read, self._life = os.pipe()
        childs = (call_read, answer_write, life_read)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rti_exp.envs.worker", *map(str, childs)],
                stdin=subprocess.DEVNULL,
                pass_fds=childs,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (self._calls, self._answers, self._life):
                os.close(descriptor)
            raise
        finally:
            for descriptor in childs:
                os.close(descriptor)
        self._pipe = LinePipe(self._calls, self._answers, largest=LARGEST_ANSWER)
        ours = (self._calls, self._answers, self._life)
        self.kill = weakref.finalize(self, _kill, self.process, ours, os.getpid())

    def ask(self, call: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """
        Raises:
            WorkerLost: no answer in time, or the process has ended; it cannot be used again.
        """
        deadline = time.monotonic() + seconds
        try:
            self._pipe.send(protocol.to_line(call), deadline)
            return protocol.from_line(self._pipe.receive(deadline))
        except TimeoutError:
            raise WorkerLost(f"the environment's {call['what']} took longer than {seconds:g} s") from None
        except (BrokenPipeError, EOFError):
            how = ending(self.process, 1.0)
            raise WorkerLost(f"the environment's process ended in {call['what']}{how}") from None
        except ValueError as error:
            raise WorkerLost(f"the environment's process answered {call['what']} with {error}") from None


def _kill(process: subprocess.Popen[bytes], descriptors: Sequence[int], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the parent
        return
    end_group(process)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
