"""Episodes played by a model that takes messages and gives messages: a remote one, without ids and log-probs.

For evaluation. What it rolls out cannot be trained: turns have no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.config.remote_settings import RemotePolicySettings, ToolCalls
from rti_exp.engines.remote import Cause, ChatModel, RemoteFailure
from rti_exp.engines.remote.transcript import Transcript, messages_of
from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.randomness import derive_seed
from rti_exp.rollout.episode import broken_trajectory, check_result, environment_call
from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call
from rti_exp.types import Author, Message, Status, Task, Trajectory, Turn

AS_TEXT = (
    "To call a tool, answer with one JSON object and nothing else: "
    '{"name": "NAME OF THE TOOL", "arguments": {...}}. One call a message. To say something, write plain text.'
)
"""How a model is told to spell calls, where it is not given the API's own."""


class ChatRollouts:
    """Rolls out tasks with `model`; may be called from several threads, each with an environment of its own.

    A request that is lost ends the episode as an infrastructure failure; a conversation that has outgrown the
    model's context truncates it, as it does a local policy.

    Args:
        settings: of the group `policy`.
        temperature, top_p: as the endpoint understands them.
        seed: the run's; every draw is derived from it, where the endpoint takes seeds.
    """

    def __init__(
        self, *, model: ChatModel, settings: RemotePolicySettings, temperature: float, top_p: float, seed: int
    ) -> None:
        self.model = model
        self.settings = settings
        self.temperature = temperature
        self.top_p = top_p
        self.seed = seed

    def run(self, environment: Environment, task: Task, member: int) -> Trajectory:
        """One episode, from its start to its end.

        Raises:
            RemoteDown: the job must end.
        """
        turns: list[Turn] = []
        try:
            episode = environment_call(environment.start, task)
            opening, tools = environment_call(lambda: (tuple(episode.messages), tuple(episode.tools)))
            for step in range(environment.max_turns):
                message = self._message(self._asked(opening, turns, tools), tools, task, member, step)
                if message is None:
                    return _ended(task, member, turns, error="the conversation is longer than the model's context")
                state_hash = environment_call(episode.state_hash)
                result = environment_call(episode.step, message)
                check_result(result)
                turns.append(_turn(message, result.observations, state_hash))
                if result.done:
                    return _ended(task, member, turns, reward=result.reward, parts=result.reward_parts)
        except (InfrastructureError, RemoteFailure) as error:
            failure = error if isinstance(error, InfrastructureError) else InfrastructureError(str(error))
            return broken_trajectory(task, member, failure, turns=turns)
        return _ended(task, member, turns)

    def _asked(
        self, opening: Sequence[Message], turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]
    ) -> list[Message]:
        said = [Message(role="system", content=self.settings.system)] if self.settings.system else []
        if self.settings.tool_calls is ToolCalls.native:
            return [*said, *opening, *(one for turn in turns for one in (turn.message, *turn.observations))]
        transcript = Transcript()
        if tools:
            said.append(Message(role="system", content=AS_TEXT))
        ids = transcript.opening([*said, *opening], tools)
        for turn in turns:
            ids += transcript.action_ids(turn.message.content) + transcript.appended(turn.observations, closed=True)
        return messages_of(ids)

    def _message(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], task: Task, member: int, step: int
    ) -> Message | None:
        """The next assistant message; None if the conversation has become too long."""
        native = self.settings.tool_calls is ToolCalls.native
        try:
            reply = self.model.reply(
                messages,
                tools=tools if native else (),
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.settings.max_tokens,
                seed=derive_seed(self.seed, 0, task.id, member, "eval", step),
            )
        except RemoteFailure as failure:
            if failure.cause is Cause.TOO_LONG:
                return None
            raise
        return reply.message if native else _with_call(reply.message)


def _with_call(message: Message) -> Message:
    """The message with the call that its text spells; what begins like one is meant as one."""
    text = message.content.strip()
    if not text.startswith("{"):
        return message
    try:
        call = parse_tool_call(text)
    except MalformedToolCall as error:
        return Message(role="assistant", content=text, malformed=str(error), thinking=message.thinking)
    return Message(role="assistant", content=text, tool_calls=(call,), thinking=message.thinking)


def _turn(message: Message, observations: Sequence[Message], state_hash: str) -> Turn:
    return Turn(
        context_ids=(),
        action_ids=(),
        action_log_probs=(),
        message=message,
        observations=tuple(observations),
        author=Author.POLICY,
        state_hash=state_hash,
    )


def _ended(
    task: Task,
    member: int,
    turns: Sequence[Turn],
    *,
    reward: float | None = None,
    parts: Mapping[str, float] | None = None,
    error: str | None = None,
) -> Trajectory:
    """Truncated, with reward 0, unless the environment gave one."""
    return Trajectory(
        task_id=task.id,
        member=member,
        turns=tuple(turns),
        status=Status.TRUNCATED if reward is None else Status.OK,
        reward=0.0 if reward is None else float(reward),
        reward_parts=dict(parts or {}),
        error=error,
    )
