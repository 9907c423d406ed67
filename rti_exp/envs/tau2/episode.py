"""One conversation: the agent's turns, the user's answers to them, the benchmark's environment between the two."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.tau2.benchmark import STOP_FUNCTION, STOP_TOKEN, Domain
from rti_exp.envs.tau2.evidence import evidence
from rti_exp.envs.tau2.scoring import ENDED, Score, score
from rti_exp.envs.tau2.users import User
from rti_exp.types import Evidence, EvidenceLevel, Message, Task, ToolCall

GREETING = "Hi! How can I help you today?"
"""The agent's first message, which the benchmark's orchestrator writes."""
MAX_USER_CALLS = 50
"""Calls of the user's tools in a row, after which the user, not the agent, has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The benchmark's limits, and whether the evidence repeats the policy."""

    max_steps: int = 200
    max_errors: int = 10
    policy_in_evidence: bool = False


class Tau2Episode:
    """One attempt at one task. The state is the benchmark's environment and the transcript that led to it.

    The tools answer a turn with tool calls; text next to the calls is not delivered. A turn of text goes to the user,
    who may use tools before answering. A turn that cannot be read as either is answered with an error, is not in the
    transcript, and counts as a step and an error.

    Args:
        world_task: Our task.
        task: The benchmark's.
        user: None is the benchmark's solo mode: the agent has all tools and works on a ticket.

    Raises:
        InfrastructureError: the environment cannot be brought to the task's beginning, or the user failed.
    """

    def __init__(self, domain: Domain, world_task: Task, task: Any, user: User | None, rules: Rules) -> None:
        self._domain = domain
        self._world_task = world_task
        self._task = task
        self._user = user
        self._rules = rules
        self._turns = self._steps = self._errors = self._calls = 0
        self._ending: str | None = None
        self._score: Score | None = None
        self._unread: list[str] = []
        self._environment = domain.environment(solo_mode=user is None)
        self._transcript: list[Any] = self._begin()
        if user is not None and self._transcript[-1].role == "assistant":
            self._ask_user()
            if self._ending is not None:
                raise InfrastructureError("the user ended the conversation before the agent's first turn")
        self._opening = tuple(self._shown())

    def _begin(self) -> list[Any]:
        """Brings the environment to the task's beginning; the transcript there."""
        start = self._task.initial_state
        history = copy.deepcopy(list(start.message_history or ())) if start is not None else []
        self._environment.set_state(
            initialization_data=None if start is None else start.initialization_data,
            initialization_actions=None if start is None else start.initialization_actions,
            message_history=history,
        )
        if history or self._user is None:
            return history
        return [self._domain.message.AssistantMessage(role="assistant", content=GREETING)]

    def _shown(self) -> list[Message]:
        """The conversation so far as the agent sees it."""
        policy = self._environment.get_policy()
        if self._user is None:
            system = self._domain.solo_prompt(policy, self._task.ticket)
        else:
            system = self._domain.agent_prompt(policy)
        of_user = [message.role == "tool" and message.requestor == "user" for message in self._transcript]
        return [
            Message(role="system", content=system),
            *(
                _converted(message)
                for message, users in zip(self._transcript, of_user, strict=True)
                if not users and not (message.role == "user" and message.is_tool_call())
            ),
        ]

    @property
    def messages(self) -> Sequence[Message]:
        return self._opening

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._domain.tools("solo" if self._user is None else "agent")

    @property
    def transcript(self) -> Sequence[Any]:
        """The benchmark's messages so far, including the task's history."""
        return self._transcript

    @property
    def ending(self) -> str | None:
        """The ending in the benchmark's terms (user_stop, too_many_errors, ...); None before the end."""
        return self._ending

    def step(self, message: Message) -> StepResult:
        if self._ending is not None:
            raise RuntimeError(f"the episode of {self._world_task.id} is over; start a new one")
        self._turns += 1
        self._score = None
        if message.tool_calls or message.malformed is not None:
            observations = self._call(message) if message.tool_calls else ()
            if message.malformed is not None and self._ending is None:
                observations += self._refuse(message, message.malformed)
        elif not message.content.strip():
            observations = self._refuse(message, "The message is empty. Write to the user, or call a tool.")
        else:
            observations = self._write(message.content)
        if self._ending is None:
            return StepResult(observations=observations, done=False)
        if self._ending not in ENDED:
            return StepResult(observations=observations, done=True, reward=0.0)
        scored = self._scored()
        return StepResult(observations=observations, done=True, reward=scored.reward, reward_parts=scored.parts)

    def _refuse(self, message: Message, why: str) -> tuple[Message, ...]:
        self._unread.append(message.content)
        self._steps += 1
        self._errors += 1
        self._check_limits()
        return (Message(role="tool", content=f"Error: {why}"),)

    def _call(self, message: Message) -> tuple[Message, ...]:
        types = self._domain.message
        if self._user is None and any(call.name == STOP_FUNCTION for call in message.tool_calls):
            self._transcript.append(types.AssistantMessage(role="assistant", content=STOP_TOKEN))
            self._steps += 1
            self._ending = "agent_stop"
            self._check_limits()
            return ()
        calls = self._benchmark_calls(message.tool_calls, "assistant")
        self._transcript.append(types.AssistantMessage(role="assistant", tool_calls=calls))
        answers = self._answered(calls)
        return tuple(Message(role="tool", content=_shown(answer)) for answer in answers)

    def _benchmark_calls(self, calls: Sequence[ToolCall], requestor: str) -> list[Any]:
        numbered = []
        for call in calls:
            arguments = copy.deepcopy(dict(call.arguments))
            numbered.append(
                self._domain.message.ToolCall(
                    id=f"call_{self._calls}", name=call.name, arguments=arguments, requestor=requestor
                )
            )
            self._calls += 1
        return numbered

    def _answered(self, calls: Sequence[Any]) -> list[Any]:
        """Calls the tools and records their answers; together they are two steps of the benchmark."""
        # Tools may keep and change their arguments; the transcript keeps its own copy.
        answers = [self._environment.get_response(call.model_copy(deep=True)) for call in calls]
        self._environment.sync_tools()
        self._transcript += answers
        self._errors += sum(answer.error for answer in answers)
        self._steps += 2
        self._check_limits()
        return answers

    def _write(self, text: str) -> tuple[Message, ...]:
        self._transcript.append(self._domain.message.AssistantMessage(role="assistant", content=text))
        self._steps += 1
        if self._user is None:
            self._ending = "agent_error"  # the benchmark's term for a text where only calls are read
        self._check_limits()
        return () if self._ending is not None else self._ask_user()

    def _ask_user(self) -> tuple[Message, ...]:
        """Executes the user's tool calls until the user writes a text, which the agent sees."""
        assert self._user is not None
        types = self._domain.message
        for _ in range(MAX_USER_CALLS):
            said = self._user.say(self._seen_by_user())
            if not said.calls:
                self._transcript.append(types.UserMessage(role="user", content=said.text))
                self._steps += 1
                self._ending = "user_stop" if said.ends else None
                self._check_limits()
                return (Message(role="user", content=said.text),)
            calls = self._benchmark_calls(said.calls, "user")
            self._transcript.append(types.UserMessage(role="user", tool_calls=calls))
            self._answered(calls)
            if self._ending is not None:
                return ()
        raise InfrastructureError(f"the user made {MAX_USER_CALLS} tool calls in a row")

    def _seen_by_user(self) -> list[Message]:
        """The agent's texts, the user's messages, and the results of the user's tools."""
        return [
            _converted(message)
            for message in self._transcript
            if message.role == "user"
            or (message.role == "assistant" and not message.is_tool_call())
            or (message.role == "tool" and message.requestor == "user")
        ]

    def _check_limits(self) -> None:
        """As in the benchmark's orchestrator, a limit overrides an ending in the same step."""
        if self._steps >= self._rules.max_steps:
            self._ending = "max_steps"
        if self._errors >= self._rules.max_errors:
            self._ending = "too_many_errors"

    def _scored(self) -> Score:
        if self._score is None:
            self._score = score(self._domain, self._task, self._transcript, solo=self._user is None)
        return self._score

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """
        Raises:
            InfrastructureError: the benchmark's evaluator raised.
        """
        if level == "none":
            return Evidence(level=level)
        policy = self._environment.get_policy() if self._rules.policy_in_evidence else None
        return evidence(level, self._task, self._scored(), ending=self._ending, policy=policy)

    def state_hash(self) -> str:
        dumps = [message.model_dump(exclude={"timestamp", "turn_idx"}) for message in self._transcript]
        state = [self._world_task.id, self._turns, self._steps, self._errors, self._ending, self._unread, dumps]
        digest = hashlib.blake2b(json.dumps(state, sort_keys=True, default=str).encode(), digest_size=8)
        for kit in (self._environment.tools, self._environment.user_tools):
            if kit is not None:
                digest.update(kit.db.model_dump_json(warnings=False).encode())
        return digest.hexdigest()

    def fork(self, messages: Sequence[Message]) -> Tau2Episode:
        """Replays the turns in a fresh environment, call by call, with the same user."""
        episode = Tau2Episode(self._domain, self._world_task, self._task, self._user, self._rules)
        for message in messages:
            episode.step(message)
        return episode


def _converted(message: Any) -> Message:
    """A benchmark message as a `Message`; the text of a call is its JSON."""
    if message.role == "tool" or not message.is_tool_call():
        return Message(role=message.role, content=_shown(message))
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in message.tool_calls)
    text = "\n".join(json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in calls)
    return Message(role=message.role, content=text, tool_calls=calls)


def _shown(message: Any) -> str:
    """The content as a model reads it: the benchmark writes a tool's result as JSON with non-ASCII letters escaped."""
    content = message.content or ""
    if message.role != "tool" or "\\u" not in content:
        return content
    try:
        result = json.loads(content)
    except ValueError:
        return content
    # Text that the benchmark did not write itself stays as it is.
    return json.dumps(result, ensure_ascii=False) if json.dumps(result) == content else content
