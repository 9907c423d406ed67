"""An environment in a separate process, with every call bounded in wall-clock time (`env.timeout`).

A call that takes longer, or a process that dies, costs one trajectory: the process and everything that it started are
killed, and a new process starts with the next call. Episodes that were alive in the old process are restored by replay
when they are used again; a replay that leads to another state costs that trajectory.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs import worker_protocol as protocol
from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.worker_process import WorkerProcess
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

START_SECONDS = 120.0
"""Seconds for creating the environment and listing its tasks, if `timeout` is not longer."""


class IsolatedEnvironment:
    """The environment `target(**options)` in another process.

    Args:
        target: Full name of a class; its options, tasks and results must be plain JSON.
        timeout: Seconds that one call may take.

    Raises:
        ValueError: the environment refuses its options.
        InfrastructureError: it cannot be created, or not in time.
    """

    def __init__(self, target: str, options: Mapping[str, Any], *, timeout: float) -> None:
        self._spec = {"what": "make", "target": target, "options": dict(options)}
        self.timeout = timeout
        self._worker: WorkerProcess | None = None
        self._numbers = itertools.count()
        self._forgotten: list[int] = []
        self.generation = 0
        self.max_turns: int = self.call({"what": "hello"}, restart=True)["max_turns"]

    def tasks(self, split: str) -> list[Task]:
        return [protocol.task_of(form) for form in self.call({"what": "tasks", "split": split}, restart=True)]

    def start(self, task: Task) -> IsolatedEpisode:
        return IsolatedEpisode(self, task)

    @property
    def alive(self) -> bool:
        return self._worker is not None

    def close(self) -> None:
        """Ends the process; a later call starts a new one."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def number(self) -> int:
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """Drops an episode; the process gets its number with the next call."""
        self._forgotten.append(number)

    def call(self, call: Mapping[str, Any], *, restart: bool = False) -> Any:
        """The value that the process answers. `restart` allows the time for creating an environment.

        Raises:
            ValueError: the environment raised it while it was created.
            InfrastructureError: the environment raised; its process did not answer in time, or ended.
            EngineUnusable: a model behind the environment denies access.
        """
        seconds = max(self.timeout, START_SECONDS) if restart else self.timeout
        try:
            greeting = self._ensure_worker()
            if call["what"] == "hello":
                return greeting
            assert self._worker is not None
            forgotten, self._forgotten = self._forgotten, []
            answer = self._worker.ask({**call, "forget": forgotten}, seconds)
        except BaseException:  # after an interrupt during an answer, the next line would belong to another call
            self.close()
            raise
        return _value(answer)

    def _ensure_worker(self) -> Any:
        """Starts a process if there is none, and creates the environment in it."""
        if self._worker is not None:
            return None
        self._worker = WorkerProcess()
        self.generation += 1
        self._forgotten = []
        answer = self._worker.ask(self._spec, max(self.timeout, START_SECONDS))
        if "error" in answer:
            self.close()
            if answer["type"] in ("ValueError", "SettingsError"):
                raise ValueError(answer["error"])
        return _value(answer)


def _value(answer: Mapping[str, Any]) -> Any:
    if answer.get("unusable"):
        raise EngineUnusable(answer["error"])
    if "error" in answer:
        raise InfrastructureError(f"{answer['type']}: {answer['error']}")
    return answer["value"]


class IsolatedEpisode:
    """One attempt. It keeps its turns, so that it can be restored in another process."""

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
        """The results of the turns since the last known hash."""
        self._hash: str | None = None
        if origin is None:
            opening = self._begin()
        else:
            forms = [protocol.message_form(message) for message in messages]
            opening = self._ask_as_new({"what": "fork", "origin": origin, "messages": forms})
        self.messages = tuple(protocol.message_of(form) for form in opening["messages"])
        self.tools: tuple[Mapping[str, Any], ...] = tuple(opening["tools"])

    def step(self, message: Message) -> StepResult:
        answer = self._call({"what": "step", "message": protocol.message_form(message)})
        result, self.tools = protocol.result_of(answer["result"]), tuple(answer["tools"])
        self._messages.append(message)
        self._since.append(result)
        return result

    def evidence(self, level: EvidenceLevel) -> Evidence:
        return protocol.evidence_of(self._call({"what": "evidence", "level": level}))

    def state_hash(self) -> str:
        state_hash: str = self._call({"what": "state_hash"})
        self._hash, self._since = state_hash, []
        return state_hash

    def fork(self, messages: Sequence[Message]) -> IsolatedEpisode:
        if not self._is_alive:  # a fork starts from the task, so any episode of it will do
            return self._environment.start(self._task).fork(messages)
        return IsolatedEpisode(self._environment, self._task, origin=self._number, messages=messages)

    def _begin(self) -> dict[str, Any]:
        return self._ask_as_new({"what": "start", "task": protocol.task_form(self._task)})

    def _ask_as_new(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._number = self._environment.number()
        opening = self._ask(call)
        self._generation = self._environment.generation
        self._forget = weakref.finalize(self, self._environment.forget, self._number)
        return opening

    @property
    def _is_alive(self) -> bool:
        """Whether its process still runs."""
        return self._generation == self._environment.generation and self._environment.alive

    def _call(self, call: Mapping[str, Any]) -> Any:
        if not self._is_alive:
            self._restore()
        return self._ask(call)

    def _ask(self, call: Mapping[str, Any]) -> Any:
        return self._environment.call({**call, "episode": self._number})

    def _restore(self) -> None:
        """Replays the episode's turns in a new process.

        Raises:
            InfrastructureError: the replay led to another state.
        """
        known = len(self._messages) - len(self._since)
        self._begin()
        if known:
            forms = [protocol.message_form(message) for message in self._messages[:known]]
            self._ask_as_new({"what": "fork", "origin": self._number, "messages": forms})
        same = (
            self._hash is None or self._environment.call({"what": "state_hash", "episode": self._number}) == self._hash
        )
        for message, result in zip(self._messages[known:], self._since, strict=True):
            call = {"what": "step", "message": protocol.message_form(message)}
            same = same and protocol.result_of(self._ask(call)["result"]) == result
        if not same:
            raise InfrastructureError("the environment's process was lost, and a replay led to another state")
