"""An environment in a process of its own, each call into it bounded in wall-clock time (`env.timeout`).

A call that takes longer, and a process that dies, cost the one trajectory: the process is killed with all that it
has started, and a new one is begun. Episodes that were alive in the old one are brought to where they were by a
replay, when they are asked for the next time; a replay that leads elsewhere costs that trajectory.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs import wire
from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.process import WorkerLost, WorkerProcess
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

START_SECONDS = 120.0
"""How long making the environment and listing its tasks may take, if `timeout` is not longer."""
LOSSES_OF_A_TASK = 2
TASKS_IN_A_ROW = 6
"""A task that has cost so many answers is left alone for a while: calls for its episodes fail at once. All tasks are,
if so many have cost one and no turn was carried out between them. So a task that always hangs costs two time-outs
and not one for each member of its group, and an environment that always hangs costs twelve at most."""
EVERY = "*"
REST = 10.0
"""How long a task, or all, is left alone, in time-outs."""


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
        self._losses: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        self._row: set[str] = set()
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

    def call(self, call: Mapping[str, Any], *, task: str = "", restart: bool = False) -> Any:
        """The answer's value. `restart` allows the time that making an environment takes.

        Raises:
            ValueError: while being made, the environment raised that.
            InfrastructureError: the environment raised; its process did not answer in time, or ended.
            EngineUnusable: a model behind the environment refuses us.
        """
        for whose, name in ((EVERY, "all tasks are"), (task, "this task is")):
            if time.monotonic() < self._resting.get(whose, 0.0):
                raise WorkerLost(f"the environment gave no answer again and again; {name} left alone for a while")
        seconds = max(self.timeout, START_SECONDS) if restart else self.timeout
        try:
            made = self._begun()
            if call["what"] == "hello":
                return made
            assert self._worker is not None
            forgotten, self._forgotten = self._forgotten, []
            answer = self._worker.ask({**call, "forget": forgotten}, seconds)
        except WorkerLost:
            self._lost(task)
            raise
        except BaseException:  # an interrupt amid an answer: what comes next would be taken for another call's
            self.close()
            raise
        return _value(answer)

    def stepped(self) -> None:
        """An episode has moved on, so that the environment is not down as a whole."""
        self._row.clear()

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

    def _lost(self, task: str) -> None:
        self.close()
        until = time.monotonic() + REST * self.timeout
        self._losses[task] += 1
        if self._losses[task] >= LOSSES_OF_A_TASK:
            self._losses[task], self._resting[task] = 0, until
        self._row.add(task)
        if len(self._row) >= TASKS_IN_A_ROW:
            self._resting[EVERY] = until


def _value(answer: Mapping[str, Any]) -> Any:
    if answer.get("unusable"):
        raise EngineUnusable(answer["error"])
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
        found: str = self._call({"what": "state_hash"})
        self._hash, self._since = found, []
        return found

    def fork(self, messages: Sequence[Message]) -> IsolatedEpisode:
        if not self._is_there:  # a fork begins at the task's start: any episode of it will do
            return self._environment.start(self._task).fork(messages)
        return IsolatedEpisode(self._environment, self._task, origin=self._number, messages=messages)

    def _begin(self) -> dict[str, Any]:
        return self._ask_as_new({"what": "start", "task": wire.task_form(self._task)})

    def _ask_as_new(self, call: Mapping[str, Any]) -> dict[str, Any]:
        self._number = self._environment.number()
        opening = self._ask(call)
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
        return self._ask(call)

    def _ask(self, call: Mapping[str, Any]) -> Any:
        return self._environment.call({**call, "episode": self._number}, task=self._task.id)

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
            call = {"what": "step", "message": wire.message_form(message)}
            same = same and wire.result_of(self._ask(call)) == result
        if not same:
            raise InfrastructureError("the environment's process was lost, and a replay led to another state")
