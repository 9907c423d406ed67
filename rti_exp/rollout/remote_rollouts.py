"""Episodes of a remote model, which takes messages and answers with messages, without ids and log-probs.

For evaluation only: its turns have no ids, so they cannot be trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rti_exp.config.remote_settings import RemotePolicySettings, ToolCalls
from rti_exp.engines.remote import Cause, ChatModel, RemoteFailure
from rti_exp.engines.remote.transcript import Transcript, messages_of
from rti_exp.envs.base import Environment, Episode, InfrastructureError
from rti_exp.randomness import derive_seed
from rti_exp.rollout.environment_calls import broken_trajectory, current_tools, environment_call, hash_of, step_of
from rti_exp.rollout.live_episode import read_opening
from rti_exp.rollout.segments import Opening
from rti_exp.rollout.tool_calls import JsonCalls
from rti_exp.types import Author, Message, Status, Task, Trajectory, Turn

TEXT_CALLS = (
    "To call a tool, answer with one JSON object and nothing else: "
    '{"name": "NAME OF THE TOOL", "arguments": {...}}. One call a message. To say something, write plain text.'
)
"""How a model that does not get the API's own tools is asked to write calls."""


class RemoteRollouts:
    """Rolls out tasks with `model`. May be called from several threads, each with its own environment.

    A lost request ends the episode as an infrastructure failure. A conversation that exceeds the model's context
    truncates it, as it does with a local policy.

    Args:
        settings: of the group `policy`.
        temperature, top_p: as the endpoint interprets them.
        seed: the run's. Every draw's seed is derived from it, if the endpoint takes seeds.
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
        """Plays one episode from start to end.

        Raises:
            RemoteDown: the job must end.
        """
        turns: list[Turn] = []
        reward, reward_parts, status, error = 0.0, {}, Status.TRUNCATED, None
        try:
            episode = environment_call(environment.start, task)
            opening = read_opening(episode)
            for step in range(environment.max_turns):
                seed = derive_seed(self.seed, 0, task.id, member, "eval", step)
                message = self._next_message(episode, opening, turns, seed)
                if message is None:
                    error = "the conversation is longer than the model's context"
                    break
                state_hash = hash_of(episode)
                result = step_of(episode, message)
                turns.append(_turn(message, result.observations, state_hash))
                if result.done:
                    reward, reward_parts, status = result.reward, result.reward_parts, Status.OK
                    break
        except InfrastructureError as failure:
            return broken_trajectory(task, member, failure, turns=turns)
        except RemoteFailure as failure:
            return broken_trajectory(task, member, InfrastructureError(str(failure)), turns=turns)
        return Trajectory(
            task_id=task.id,
            member=member,
            turns=tuple(turns),
            status=status,
            reward=reward,
            reward_parts=reward_parts,
            error=error,
        )

    @property
    def _native_calls(self) -> bool:
        return self.settings.tool_calls is ToolCalls.native

    def _next_message(self, episode: Episode, opening: Opening, turns: Sequence[Turn], seed: int) -> Message | None:
        """The next assistant message; None if the conversation has become too long."""
        # An endpoint accepts calls of the listed tools only, and an episode may get more tools on its way.
        tools = current_tools(episode) if self._native_calls else ()
        try:
            reply = self.model.reply(
                self._conversation(opening, turns),
                tools=tools,
                temperature=self.temperature,
                top_p=self.top_p,
                max_tokens=self.settings.max_tokens,
                seed=seed,
            )
        except RemoteFailure as failure:
            if failure.cause is Cause.TOO_LONG:
                return None
            raise
        return reply.message if self._native_calls else _with_call(reply.message)

    def _conversation(self, opening: Opening, turns: Sequence[Turn]) -> list[Message]:
        system = [Message(role="system", content=self.settings.system)] if self.settings.system else []
        if self._native_calls:
            later = [message for turn in turns for message in (turn.message, *turn.observations)]
            return [*system, *opening.messages, *later]
        if opening.tools:
            system.append(Message(role="system", content=TEXT_CALLS))
        transcript = Transcript()
        ids = transcript.opening([*system, *opening.messages], opening.tools)
        for turn in turns:
            ids += transcript.action_ids(turn.message.content) + transcript.appended(turn.observations, closed=True)
        return messages_of(ids)


def _with_call(message: Message) -> Message:
    """The message with the call that its text spells. A text that begins like a call counts as an attempt at one."""
    calls, malformed = JsonCalls().read(message.content)
    return dataclasses.replace(message, tool_calls=calls, malformed=malformed or message.malformed)


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
