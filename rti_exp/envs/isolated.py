"""An environment in a process of its own, each call into it bounded in wall-clock time (`env.timeout`).

A call that takes longer, and a process that dies, cost the one trajectory: the process is killed with all that it
has started, and a new one is begun. Episodes that were alive in the old one are brought to where they were by a
replay, when they are asked for the next time; a replay that leads elsewhere costs that trajectory.
"""

from __future__ import annotations

import contextlib
import itertools
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
from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

START_SECONDS = 120.0
"""How long making the environment and listing its tasks may take, if `timeout` is not longer."""
LOSSES_IN_A_ROW = 3
"""After so many calls without an answer, and no turn carried out between them, the environment is left alone for a
while: calls fail at once. So one that always hangs costs a few time-outs, not one for each rollout."""
REST = 10.0
"""How long it is left alone, in time-outs; then one call tries."""
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


class IsolatedEnvironment:
    """The environment `target(**options)` in another process.

    Args:
        target: Full name of a class; its options, tasks and results have to be plain JSON.
        timeout: Seconds that one call may take.

    Raises:
        ValueError: the environment refuses its options.
        InfrastructureError: it cannot be made, or not in time.
    """

    def __init__(self, target: str, options: Mapping[str, Any], *, timeout: float) -> None:
        self._spec = {"what": "make", "target": target, "options": dict(options)}
        self.timeout = timeout
        self._worker: WorkerProcess | None = None
        self._numbers = itertools.count()
        self._forgotten: list[int] = []
        self._losses = 0
        self._resting_until = 0.0
        self.generation = 0
        self.max_turns: int = self.call({"what": "hello"}, restart=True)["max_turns"]

    def tasks(self, split: str) -> list[Task]:
        return [wire.task_of(form) for form in self.call({"what": "tasks", "split": split}, restart=True)]

    def start(self, task: Task) -> IsolatedEpisode:
        return IsolatedEpisode(self, task)

    @property
    def alive(self) -> bool:
        return self._worker is not None

    def close(self) -> None:
        """End the process; a later call begins a new one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def number(self) -> int:
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """The episode is of no more use; the process is told with the next call."""
        self._forgotten.append(number)

    def call(self, call: Mapping[str, Any], *, restart: bool = False) -> Any:
        """The answer's value. `restart` allows the time that making an environment takes.

        Raises:
            ValueError: while being made, the environment raised that.
            InfrastructureError: the environment raised; its process did not answer in time, or ended.
        """
        if time.monotonic() < self._resting_until:
            raise WorkerLost(
                f"the environment gave no answer {self._losses} times, and carried out no turn; it was not asked again"
            )
        seconds = max(self.timeout, START_SECONDS) if restart else self.timeout
        try:
            made = self._begun()
            if call["what"] == "hello":
                return made
            assert self._worker is not None
            forgotten, self._forgotten = self._forgotten, []
            answer = self._worker.ask({**call, "forget": forgotten}, seconds)
        except WorkerLost:
            self._lost()
            raise
        except BaseException:  # an interrupt amid an answer: what comes next would be taken for another call's
            self.close()
            raise
        return _value(answer)

    def stepped(self) -> None:
        """An episode has moved on, so that the environment is not down as a whole."""
        self._losses = 0

    def _begun(self) -> Any:
        """Begin a process if there is none, and make the environment in it."""
        if self._worker is not None:
            return None
        self._worker = WorkerProcess()
        self.generation += 1
        self._forgotten = []
        answer = self._worker.ask(self._spec, max(self.timeout, START_SECONDS))
        if "error" in answer:
            self.close()
            if answer["type"] == "ValueError":
                raise ValueError(answer["error"])
        return _value(answer)

    def _lost(self) -> None:
        self.close()
        self._losses += 1
        if self._losses >= LOSSES_IN_A_ROW:
            self._resting_until = time.monotonic() + REST * self.timeout


def _value(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise InfrastructureError(f"{answer['type']}: {answer['error']}")
    return answer["value"]


class IsolatedEpisode:
    """One attempt, wherever its process is; it knows its turns, so that it can be taken up in another one."""

    def __init__(
        self,
        environment: IsolatedEnvironment,
        task: Task,
        *,
        origin: int | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        self._environment = environment
        self._task = task
        self._messages = list(messages)
        self._since: list[StepResult] = []
        """What the turns since the last known hash gave."""
        self._hash: str | None = None
        if origin is None:
            opening = self._begin()
        else:
            forms = [wire.message_form(one) for one in messages]
            opening = self._ask_as_new({"what": "fork", "origin": origin, "messages": forms})
        self.messages = tuple(wire.message_of(form) for form in opening["messages"])
        self.tools: tuple[Mapping[str, Any], ...] = tuple(opening["tools"])

    def step(self, message: Message) -> StepResult:
        result = wire.result_of(self._call({"what": "step", "message": wire.message_form(message)}))
        self._environment.stepped()
        self._messages.append(message)
        self._since.append(result)
        return result

    def evidence(self, level: EvidenceLevel) -> Evidence:
        return wire.evidence_of(self._call({"what": "evidence", "level": level}))

    def state_hash(self) -> str:
        self._hash = self._call({"what": "state_hash"})
        self._since = []
        return self._hash

    def fork(self, messages: Sequence[Message]) -> IsolatedEpisode:
        if not self._is_there:  # a fork begins at the task's start: any episode of it will do
            return self._environment.start(self._task).fork(messages)
        return IsolatedEpisode(self._environment, self._task, origin=self._number, messages=messages)

    def _begin(self) -> dict[str, Any]:
        return self._ask_as_new({"what": "start", "task": wire.task_form(self._task)})

    def _ask_as_new(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._number = self._environment.number()
        opening = self._environment.call({**call, "episode": self._number})
        self._generation = self._environment.generation
        self._forget = weakref.finalize(self, self._environment.forget, self._number)
        return opening

    @property
    def _is_there(self) -> bool:
        """Whether the process that it lives in is still the one."""
        return self._generation == self._environment.generation and self._environment.alive

    def _call(self, call: Mapping[str, Any]) -> Any:
        if not self._is_there:
            self._take_up()
        return self._environment.call({**call, "episode": self._number})

    def _take_up(self) -> None:
        """Bring the episode to where it was, in a new process.

        Raises:
            InfrastructureError: the replay led elsewhere.
        """
        known = len(self._messages) - len(self._since)
        self._begin()
        if known:
            forms = [wire.message_form(one) for one in self._messages[:known]]
            self._ask_as_new({"what": "fork", "origin": self._number, "messages": forms})
        same = (
            self._hash is None or self._environment.call({"what": "state_hash", "episode": self._number}) == self._hash
        )
        for message, result in zip(self._messages[known:], self._since, strict=True):
            call = {"what": "step", "message": wire.message_form(message), "episode": self._number}
            same = same and wire.result_of(self._environment.call(call)) == result
        if not same:
            raise InfrastructureError("the environment's process was lost, and a replay led to another state")
