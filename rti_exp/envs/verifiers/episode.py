"""One rollout of a `verifiers` environment as an `Episode`: forked by a replay from its beginning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.tool_json import read_arguments
from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.verifiers.rollout import MODEL, SteppedRollout
from rti_exp.envs.verifiers.scoring import conditions, unmet
from rti_exp.types import Evidence, EvidenceLevel, Message, Task, ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class VerifiersEpisode:
    """A turn goes to the environment as the package's assistant message; what it appends are the observations.

    A turn that cannot be read is answered with an error, and the environment does not see it.
    """

    def __init__(self, task: Task, *, world: Any, seconds: float) -> None:
        self._task = task
        self._world = world
        self._seconds = seconds
        self._rollout = SteppedRollout(world, task.payload["row"], seconds=seconds)
        if self._rollout.prompt is None:
            raise InfrastructureError("the environment was over before the first turn")
        self._messages = tuple(_converted(message) for message in self._rollout.prompt)
        self._tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._rollout.tools
        ]
        self._history: list[Message] = list(self._messages)
        self._turns = self._calls = 0

    @property
    def messages(self) -> Sequence[Message]:
        return self._messages

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        return self._tools

    def step(self, message: Message) -> StepResult:
        prompt = self._rollout.prompt
        if prompt is None:
            raise RuntimeError(f"the episode of {self._task.id} is over; start a new one")
        self._turns += 1
        error = [Message(role="tool", content=f"Error: {message.malformed}")] if message.malformed is not None else []
        if error and not message.tool_calls:
            return self._observed(error, message)
        self._rollout.answer(self._response(message))
        after = self._rollout.prompt
        if after is None:
            state = self._rollout.state
            said = [_converted(message) for message in state.get("final_env_response") or ()]
            parts = {str(name): float(value) for name, value in (state["metrics"] or {}).items()}
            self._history += [message, *said]
            return StepResult(observations=tuple(said), done=True, reward=float(state["reward"]), reward_parts=parts)
        before = [_converted(message) for message in prompt]
        if [_converted(message) for message in after[: len(prompt)]] != before or len(after) < len(prompt) + 1:
            raise InfrastructureError("the environment rewrote the conversation; here turns can only be appended")
        return self._observed([*(_converted(message) for message in after[len(prompt) + 1 :]), *error], message)

    def _observed(self, said: Sequence[Message], message: Message) -> StepResult:
        self._history += [message, *said]
        return StepResult(observations=tuple(said), done=False)

    def _response(self, message: Message) -> Any:
        from verifiers.types import Response, ResponseMessage  # pyright: ignore[reportMissingImports]

        calls = []
        for call in message.tool_calls:
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            calls.append({"id": f"call_{self._calls}", "name": call.name, "arguments": arguments})
            self._calls += 1
        said = ResponseMessage(
            content="" if calls else message.content,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id=f"turn_{self._turns}", created=0, model=MODEL, message=said)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """The reward functions that count, and those below 1; the row's `answer` at level "reference"."""
        if level == "none":
            return Evidence(level=level)
        texts = conditions(self._world.rubric)
        over = self._rollout.prompt is None
        failed = unmet(texts, self._rollout.state["metrics"] or {} if over else None)
        answer = self._task.payload["row"].get("answer")
        reference = str(answer) if level == "reference" and answer not in (None, "") else None
        return Evidence(level=level, rubric=tuple(texts.values()), failed=tuple(failed), reference=reference)

    def state_hash(self) -> str:
        """Over all that was said, and what the environment keeps in the rollout's state."""
        said = [
            [item.role, item.content, item.malformed, [[call.name, call.arguments] for call in item.tool_calls]]
            for item in self._history
        ]
        state = [self._task.id, self._turns, self._rollout.prompt is None, said, self._rollout.extra_state()]
        return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()

    def fork(self, messages: Sequence[Message]) -> VerifiersEpisode:
        episode = VerifiersEpisode(self._task, world=self._world, seconds=self._seconds)
        for message in messages:
            episode.step(message)
        return episode


def _converted(message: Any) -> Message:
    """
    Raises:
        InfrastructureError: it has a content that is not text.
    """
    fields = message if isinstance(message, Mapping) else message.model_dump()
    calls = tuple(
        ToolCall(name=call["name"], arguments=read_arguments(call["arguments"]))
        for call in fields.get("tool_calls") or ()
    )
    return Message(role=ROLES.get(fields["role"], "user"), content=_text(fields.get("content")), tool_calls=calls)  # pyright: ignore[reportArgumentType]


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(part["text"] for part in content)
    raise InfrastructureError("the environment's message has parts that are not text")
