"""One conversation: fixed user turns, in each of them any number of tool calls, a check at the end of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.envs.base import StepResult
from rti_exp.envs.bfcl.backend import Backend
from rti_exp.envs.bfcl.calls import Call, parse_call
from rti_exp.envs.bfcl.data import tools
from rti_exp.envs.bfcl.turn_check import TurnCheck, check_turn
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

SYSTEM = (
    "You are an expert in composing functions. You are given a question and a set of possible functions. Based on the "
    "question, you will need to make one or more function/tool calls to achieve the purpose. If none of the functions "
    "can be used, point it out. If the given question lacks the parameters required by the function, also point it "
    "out.\n\nAt each turn, you should try your best to complete the tasks requested by the user within the current "
    "turn. Continue to output functions to call until you have fulfilled the user's request to the best of your "
    "ability. Once you have no more functions to call, the system will consider the current turn complete and proceed "
    "to the next turn or task."
)
"""The benchmark's system prompt without its paragraphs on the format of calls and its list of tools."""
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
MAX_CALLS = 64
"""Calls that one assistant turn may make; the longest turn of a reference has 34."""


class BfclEpisode:
    """One attempt. A turn of text without a call ends the user turn, as in the benchmark."""

    def __init__(self, task: Task, *, max_steps: int) -> None:
        entry = task.payload["entry"]
        long_context = task.family == "bfcl_long_context"
        self._task = task
        self._max_steps = max_steps
        self._users: list[list[Mapping[str, str]]] = entry["question"]
        self._reference: list[list[str]] = task.payload["reference"]
        self._later: Mapping[str, list[str]] = entry.get("missed_function", {})
        self._all_tools = tools(entry)
        self._backend = Backend(entry, long_context=long_context)
        self._expected = Backend(entry, long_context=long_context)
        self._user = 0
        self._steps = 0
        self._called = False
        self._answers: list[str] = []
        self._checks: list[TurnCheck] = []
        self._turns = 0
        self._over: str | None = None

    @property
    def messages(self) -> list[Message]:
        return [Message(role="system", content=SYSTEM), Message(role="user", content=self._user_text(0))]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The tools of this user turn; a tool that a later request adds comes with that request."""
        return [tool for tool in self._all_tools if tool["name"] not in self._missing(self._user)]

    def _missing(self, user: int) -> set[str]:
        return {name for turn, names in self._later.items() if int(turn) > user for name in names}

    def _user_text(self, user: int) -> str:
        if str(user) not in self._later:
            return "\n".join(message["content"] for message in self._users[user])
        given = [tool for tool in self._all_tools if tool["name"] in self._later[str(user)]]
        return f"{json.dumps(given, ensure_ascii=False)}\n{MORE_FUNCTIONS}"

    def step(self, message: Message) -> StepResult:
        if self._over is not None:
            raise RuntimeError(f"the episode of {self._task.id} is over; start a new one")
        self._turns += 1
        if not message.tool_calls and message.malformed is None:
            return self._end_of_user_turn()
        self._steps += 1
        if self._steps > self._max_steps:
            self._over = f"more than {self._max_steps} turns with tool calls for one request"
            return self._done()
        if len(message.tool_calls) > MAX_CALLS:
            return self._tool_answers([f"Error during execution: more than {MAX_CALLS} calls in one turn."])
        self._called = self._called or bool(message.tool_calls)
        answers = [self._backend.call(Call(name=call.name, arguments=call.arguments)) for call in message.tool_calls]
        self._answers += answers
        refused = [] if message.malformed is None else [f"Error during execution: {message.malformed}"]
        return self._tool_answers([*answers, *refused])

    @staticmethod
    def _tool_answers(answers: Sequence[str]) -> StepResult:
        return StepResult(observations=tuple(Message(role="tool", content=text) for text in answers), done=False)

    def _end_of_user_turn(self) -> StepResult:
        expected = [self._expected.call(parse_call(text)) for text in self._reference[self._user]]
        check = check_turn(
            self._user,
            called=self._called,
            answers=self._answers,
            backend=self._backend,
            expected=self._expected,
            expected_answers=expected,
        )
        if check is not None:
            self._checks.append(check)
        self._user, self._steps, self._called = self._user + 1, 0, False
        if self._user == len(self._users):
            self._over = "done"
            return self._done()
        return StepResult(observations=(Message(role="user", content=self._user_text(self._user)),), done=False)

    def _done(self) -> StepResult:
        parts = {f"turn_{check.turn + 1}": float(check.failure is None) for check in self._checks}
        reward = float(self._over == "done" and all(parts.values()))
        return StepResult(observations=(), done=True, reward=reward, reward_parts=parts)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """The checked user turns and their failures; the reference's calls at level "reference"."""
        if level == "none":
            return Evidence(level=level)
        checked = [number for number, calls in enumerate(self._reference) if calls]
        failures = dict.fromkeys(checked, "not reached") | {check.turn: check.failure for check in self._checks}
        failed = [f"request {turn + 1}: {failure}" for turn, failure in failures.items() if failure is not None]
        if self._over not in (None, "done"):
            failed.append(f"request {self._user + 1}: {self._over}")
        return Evidence(
            level=level,
            rubric=tuple(f"request {turn + 1}: the tools' state and answers are as they should be" for turn in checked),
            failed=tuple(failed),
            reference=self._reference_text() if level == "reference" else None,
        )

    def _reference_text(self) -> str:
        return " ".join(
            f"request {turn + 1}: {', '.join(calls)}" for turn, calls in enumerate(self._reference) if calls
        )

    def state_hash(self) -> str:
        state = {
            "task": self._task.id,
            "position": [self._user, self._steps, self._called, self._turns, self._over],
            "answers": self._answers,
            "failures": [check.failure for check in self._checks],
            "backend": self._backend.fingerprint(),
        }
        return hashlib.blake2b(json.dumps(state).encode(), digest_size=8).hexdigest()

    def fork(self, messages: Sequence[Message]) -> BfclEpisode:
        episode = BfclEpisode(self._task, max_steps=self._max_steps)
        for message in messages:
            episode.step(message)
        return episode
