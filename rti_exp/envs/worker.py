"""The process of an environment with a time-out: `python -m rti_exp.envs.worker READ WRITE LIFE`.

It answers each line of JSON with one line (`rti_exp.envs.isolated` is the other end). It ends with its parent, however
that ends: a guard waits until LIFE, which only the parent holds open, is closed, and then kills the process group,
including everything that the environment started.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs import worker_protocol as protocol
from rti_exp.envs.base import Environment, Episode
from rti_exp.envs.contract import (
    checked_evidence,
    checked_hash,
    checked_opening,
    checked_result,
    checked_tasks,
    checked_tools,
)
from rti_exp.runs.redaction import redact_output


class Worker:
    """An environment and its live episodes, by the parent's numbers."""

    def __init__(self) -> None:
        self.environment: Environment | None = None
        self.episodes: dict[int, Episode] = {}
        self.answers: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "make": self._make,
            "tasks": self._tasks,
            "start": self._start,
            "fork": self._fork,
            "step": self._step,
            "state_hash": lambda call: checked_hash(self.episodes[call["episode"]].state_hash()),
            "evidence": lambda call: protocol.evidence_form(
                checked_evidence(self.episodes[call["episode"]].evidence(call["level"]))
            ),
        }

    def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        for number in call.get("forget", ()):
            self.episodes.pop(number, None)
        try:
            return {"value": self.answers[call["what"]](call)}
        except BaseException as error:  # including sys.exit in the environment: the parent reports it
            return {"error": str(error), "type": type(error).__name__, "unusable": isinstance(error, EngineUnusable)}

    @property
    def _created(self) -> Environment:
        assert self.environment is not None
        return self.environment

    def _make(self, call: Mapping[str, Any]) -> Any:
        module, _, name = call["target"].rpartition(".")
        self.environment = getattr(importlib.import_module(module), name)(**call["options"])
        return {"max_turns": self._created.max_turns}

    def _tasks(self, call: Mapping[str, Any]) -> Any:
        return [protocol.task_form(task) for task in checked_tasks(self._created.tasks(call["split"]), call["split"])]

    def _start(self, call: Mapping[str, Any]) -> Any:
        return self._keep(call["episode"], self._created.start(protocol.task_of(call["task"])))

    def _fork(self, call: Mapping[str, Any]) -> Any:
        origin = self.episodes[call["origin"]]
        return self._keep(call["episode"], origin.fork([protocol.message_of(form) for form in call["messages"]]))

    def _keep(self, number: int, episode: Episode) -> Any:
        self.episodes[number] = episode
        return protocol.opening_form(*checked_opening(episode.messages, episode.tools))

    def _step(self, call: Mapping[str, Any]) -> Any:
        episode = self.episodes[call["episode"]]
        result = checked_result(episode.step(protocol.message_of(call["message"])))
        return {"result": protocol.result_form(result), "tools": list(checked_tools(episode.tools))}


def guard(life: int, *others: int) -> None:
    """Forks a process that kills this process group once the parent is gone; it closes `others`.

    A process, not a thread: a call that never releases the interpreter would stop a thread too.
    """
    if os.fork():
        os.close(life)
        return
    for descriptor in others:
        os.close(descriptor)
    while os.read(life, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main(read: int, write: int, life: int) -> None:
    redact_output()
    guard(life, read, write)
    worker = Worker()
    with open(read, "rb") as calls, open(write, "wb", buffering=0) as answers:
        for line in calls:
            answer = worker.answer(protocol.from_line(line))
            try:
                sent = protocol.to_line(answer)
            except (TypeError, ValueError, RecursionError) as error:
                sent = protocol.to_line({"error": str(error), "type": type(error).__name__})
            while sent:
                sent = sent[answers.write(sent) :]


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:4]))
