"""One attempt at a task with a server's tools: tool calls, then a message to the user, which ends it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.mcp.judge import Judge
from rti_exp.envs.mcp.rubric import CallRecord, Condition, Judged, Record
from rti_exp.envs.mcp.session import McpSession
from rti_exp.envs.mcp.task_file import conditions_of
from rti_exp.types import Evidence, EvidenceLevel, Message, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    state_tool: str | None = None
    """A tool that reports the server's whole state, for state hash and `state_contains`; hidden from the policy."""
    hidden_tools: tuple[str, ...] = ()
    partial_reward: bool = False
    """The reward is the share of conditions that are met, instead of 1 for all and 0 otherwise."""
    answer_characters: int = 8000
    """Longer answers of a tool are cut."""


class McpEpisode:
    """`open_session` gives the session to use: a separate or a shared one."""

    def __init__(
        self, task: Task, *, open_session: Callable[[], McpSession], judge: Judge | None, settings: EpisodeSettings
    ) -> None:
        self._task = task
        self._open_session = open_session
        self._judge = judge
        self._settings = settings
        self._conditions: list[Condition] = conditions_of(task.payload["rubric"])
        self._session = open_session()
        self._tools = self._offered()
        self._check_tools()
        self._calls: list[CallRecord] = []
        self._history: list[Message] = []
        self._turns = 0
        self._answer: str | None = None

    def _offered(self) -> dict[str, Mapping[str, Any]]:
        """The session's tools by name, without the hidden ones."""
        hidden = {*self._settings.hidden_tools, self._settings.state_tool}
        return {tool["name"]: tool for tool in self._session.tools if tool["name"] not in hidden}

    def _check_tools(self) -> None:
        names = {tool["name"] for tool in self._session.tools}
        required = {*self._settings.hidden_tools, *([self._settings.state_tool] if self._settings.state_tool else [])}
        if not required <= names:
            raise InfrastructureError(
                f"the MCP server has no tool {sorted(required - names)[0]!r}; it has {sorted(names)}"
            )

    @property
    def messages(self) -> list[Message]:
        system = self._task.payload.get("system")
        opening = [] if system is None else [Message(role="system", content=system)]
        return [*opening, Message(role="user", content=self._task.payload["request"])]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """What the policy may use now; a change is also written into the answer that follows it."""
        return list(self._tools.values())

    def step(self, message: Message) -> StepResult:
        if self._answer is not None:
            raise RuntimeError(f"the episode of {self._task.id} is over; start a new one")
        self._turns += 1
        self._history.append(message)
        answers = [self._call(call) for call in message.tool_calls]
        if answers:
            answers[-1] += self._tool_changes()
        if message.malformed is not None:
            answers.append(f"Error: {message.malformed}")
        if answers:
            return self._answers(answers)
        self._answer = message.content
        return self._score()

    def _answers(self, texts: Sequence[str]) -> StepResult:
        observations = tuple(Message(role="tool", content=text) for text in texts)
        self._history += observations
        return StepResult(observations=observations, done=False)

    def _call(self, call: ToolCall) -> str:
        if call.name not in self._tools:
            return f"Error: there is no tool {call.name!r}."
        answer = self._session.call(call.name, call.arguments)
        longest = self._settings.answer_characters
        text = answer.text if len(answer.text) <= longest else answer.text[:longest] + " [cut]"
        self._calls.append(CallRecord(name=call.name, arguments=call.arguments, answer=text, failed=answer.failed))
        return text

    def _tool_changes(self) -> str:
        """Announces tools that the server added, changed or removed since the last turn."""
        before, self._tools = self._tools, self._offered()
        added = [tool for name, tool in self._tools.items() if before.get(name) != tool]
        removed = [name for name in before if name not in self._tools]
        lines = ["New tools:", *(json.dumps(tool, ensure_ascii=False) for tool in added)] if added else []
        return "\n".join(["", *lines, *([f"Removed tools: {', '.join(removed)}"] if removed else [])])

    def _score(self) -> StepResult:
        met = self._met()
        parts = {name: float(holds) for name, holds in met.items()}
        reward = sum(parts.values()) / len(parts) if self._settings.partial_reward else float(all(met.values()))
        return StepResult(observations=(), done=True, reward=reward, reward_parts=parts)

    def _met(self) -> dict[str, bool]:
        """By name of the condition. A judge is asked only about a conversation that has ended."""
        record = Record(calls=tuple(self._calls), answer=self._answer, state=self._state())
        return {
            condition.name: self._judged(condition.check.question)
            if isinstance(condition.check, Judged)
            else condition.check.met(record)
            for condition in self._conditions
        }

    def _judged(self, question: str) -> bool:
        if self._answer is None:
            return False
        assert self._judge is not None
        return self._judge.met([*self.messages, *self._history], question)

    def _state(self) -> str:
        tool = self._settings.state_tool
        if tool is None:
            return ""
        answer = self._session.call(tool, {})
        if answer.failed:  # no state: a condition on it would be a silent 0
            raise InfrastructureError(f"the MCP server's {tool} failed: {answer.text[:200]}")
        return answer.text

    def evidence(self, level: EvidenceLevel) -> Evidence:
        if level == "none":
            return Evidence(level=level)
        met = self._met()
        return Evidence(
            level=level,
            rubric=tuple(condition.text for condition in self._conditions),
            failed=tuple(condition.text for condition in self._conditions if not met[condition.name]),
            reference=self._task.payload.get("reference") if level == "reference" else None,
        )

    def state_hash(self) -> str:
        """Over all calls and answers, and the state tool's answer if there is such a tool."""
        calls = [[call.name, call.arguments, call.answer, call.failed] for call in self._calls]
        state = [self._task.id, self._turns, self._answer, calls, self._state()]
        return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()

    def fork(self, messages: Sequence[Message]) -> McpEpisode:
        episode = McpEpisode(self._task, open_session=self._open_session, judge=self._judge, settings=self._settings)
        for message in messages:
            episode.step(message)
        return episode
