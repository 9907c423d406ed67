"""One live episode: the ids so far, the budget, and the boundary at which an environment's errors are classified."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import EngineUnusable, GenerateRequest, Sampling
from rti_exp.envs.base import Episode, InfrastructureError, StepResult
from rti_exp.rollout.render import Renderer
from rti_exp.rollout.segments import Context, Opening, context_after, rerenders
from rti_exp.types import Author, Fork, Status, Task, Trajectory, Turn, segment_ids

LARGEST_REWARD = 1e9
"""Beyond it a reward is the environment's mistake: the statistics of a group would overflow."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def environment_call(call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """`call(...)`, a call into an environment: whatever it raises is the environment's failure, never a reward.

    Raises:
        InfrastructureError: the call raised; the message names the original error.
        EngineUnusable: a model behind the environment (user, judge) refuses us; ends the job.
    """
    try:
        return call(*args, **kwargs)
    except (InfrastructureError, EngineUnusable):
        raise
    except Exception as error:  # code of others: any error of theirs is classified here, once
        raise InfrastructureError(f"{type(error).__name__}: {error}") from error


def broken_trajectory(
    task: Task, member: int, error: InfrastructureError, *, turns: Sequence[Turn] = (), fork: Fork | None = None
) -> Trajectory:
    """The trajectory of an episode that the environment did not let begin or go on."""
    return Trajectory(
        task_id=task.id,
        member=member,
        turns=tuple(turns),
        status=Status.INFRASTRUCTURE_FAILURE,
        reward=math.nan,
        fork=fork,
        error=str(error) or type(error).__name__,
    )


def check_result(result: StepResult) -> None:
    """
    Raises:
        InfrastructureError: a reward that is none, or an observation that is not text.
    """
    if result.done and not abs(result.reward) <= LARGEST_REWARD:  # NaN too
        raise InfrastructureError(f"the environment gave the reward {result.reward}")
    if not all(isinstance(message.content, str) for message in result.observations):
        raise InfrastructureError("the environment gave an observation that is not text")


class EpisodeRun:
    """Mutable working state of one live episode; `finish` makes the immutable `Trajectory` of it.

    While `finished` is False, `prompt_ids` is the whole prompt of the next turn: all ids of its segment so far,
    ending with the header of an assistant turn. A run ends when the environment says so (ok), when `max_turns` turns
    are taken or no token fits into `settings.max_context` any more (truncated, reward 0.0), or when the environment
    breaks. A given turn that ends past `settings.max_context` truncates too, whatever the environment made of it.

    `seed_parts` are further parts of the seed of its draws, where task and member do not tell two runs apart.
    """

    def __init__(
        self,
        task: Task,
        member: int,
        episode: Episode,
        renderer: Renderer,
        context: Context,
        *,
        max_turns: int,
        settings: RolloutSettings,
        turns: Sequence[Turn] = (),
        fork: Fork | None = None,
        correction_weights: tuple[float, ...] = (),
        seed_parts: tuple[int | str, ...] = (),
        opening: Opening | None = None,
    ) -> None:
        self.task = task
        self.member = member
        self.episode = episode
        self.renderer = renderer
        self.max_turns = max_turns
        self.settings = settings
        self.turns = list(turns)
        self.fork = fork
        self.correction_weights = correction_weights
        self.seed_parts = seed_parts
        self.opening = opening
        self.context = context
        self.prompt_ids = context.ids if context.new_segment else segment_ids(self.turns) + context.ids
        self._status: Status | None = None
        self._result: StepResult | None = None
        self._error: InfrastructureError | None = None
        self._excess: str | None = None
        self._check_budget()

    @classmethod
    def start(
        cls,
        task: Task,
        member: int,
        episode: Episode,
        renderer: Renderer,
        *,
        max_turns: int,
        settings: RolloutSettings,
        opening_ids: tuple[int, ...] | None = None,
        seed_parts: tuple[int | str, ...] = (),
    ) -> EpisodeRun:
        """A run at its first turn. `opening_ids` spares rendering an opening that was rendered before.

        Raises:
            InfrastructureError: the episode failed to give its opening messages.
        """
        if opening_ids is None:
            opening_ids = render_opening(episode, renderer)
        return cls(
            task,
            member,
            episode,
            renderer,
            Context(ids=opening_ids),
            max_turns=max_turns,
            settings=settings,
            seed_parts=seed_parts,
            opening=_opening_of(episode) if rerenders(renderer) else None,
        )

    @classmethod
    def resume(
        cls,
        task: Task,
        member: int,
        episode: Episode,
        turns: Sequence[Turn],
        renderer: Renderer,
        *,
        max_turns: int,
        settings: RolloutSettings,
        fork: Fork | None = None,
        correction_weights: tuple[float, ...] = (),
    ) -> EpisodeRun:
        """A run that goes on after `turns`; `episode` already stands where they lead.

        With a fork, its intervention's id joins the seed, so that two corrections of one step draw apart.

        Raises:
            InfrastructureError: the episode failed to give its opening messages.
        """
        opening = _opening_of(episode) if rerenders(renderer) else None
        context = context_after(renderer, turns, opening) if turns else Context(ids=render_opening(episode, renderer))
        return cls(
            task,
            member,
            episode,
            renderer,
            context,
            max_turns=max_turns,
            settings=settings,
            turns=turns,
            fork=fork,
            correction_weights=correction_weights,
            seed_parts=() if fork is None else (fork.intervention_id,),
            opening=opening,
        )

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Ids of the next turn before its action; with a new segment, all of its prompt."""
        return self.context.ids

    @property
    def finished(self) -> bool:
        return self._status is not None

    @property
    def step(self) -> int:
        """Index of the next turn."""
        return len(self.turns)

    def request(self, seed: int, *, temperature: float) -> GenerateRequest:
        """What to ask an engine for the next turn."""
        sampling = Sampling(
            temperature=temperature,
            top_p=self.settings.top_p,
            max_tokens=min(self.settings.max_tokens, self.settings.max_context - len(self.prompt_ids)),
            stop_ids=self.renderer.stop_ids,
        )
        return GenerateRequest(prompt_ids=self.prompt_ids, sampling=sampling, seed=seed)

    def force(
        self,
        action_ids: Sequence[int],
        log_probs: Sequence[float],
        author: Author,
        *,
        importance_weights: Sequence[float] = (),
    ) -> None:
        """Take this turn, sampled or given: the environment carries it out and the run stands at the next turn.

        A turn that was cut off (its last id is no stop id) is carried out as it is.

        Raises:
            RuntimeError: the run is finished.
            ValueError: not one log-prob for each id.
        """
        if self.finished:
            raise RuntimeError(f"the episode {self.task.id}/{self.member} is finished")
        if len(action_ids) != len(log_probs):
            raise ValueError(f"{len(action_ids)} action ids with {len(log_probs)} log-probs")
        message = self.renderer.message(action_ids)
        try:
            state_hash = environment_call(self.episode.state_hash)
            result = environment_call(self.episode.step, message)
            check_result(result)
        except InfrastructureError as error:
            self._status, self._error = Status.INFRASTRUCTURE_FAILURE, error
            return
        turn = Turn(
            context_ids=self.context.ids,
            action_ids=tuple(action_ids),
            action_log_probs=tuple(log_probs),
            message=message,
            observations=tuple(result.observations),
            author=author,
            state_hash=state_hash,
            new_segment=self.context.new_segment,
            importance_weights=tuple(importance_weights),
        )
        self.turns.append(turn)
        self._advance(turn, result)

    def _advance(self, turn: Turn, result: StepResult) -> None:
        used = len(self.prompt_ids) + len(turn.action_ids)
        if used > self.settings.max_context:
            self._status = Status.TRUNCATED
            self._excess = f"the trajectory has {used} tokens, rollout.max_context is {self.settings.max_context}"
            return
        if result.done:
            self._status, self._result = Status.OK, result
            return
        self.context = context_after(self.renderer, self.turns, self.opening)
        if self.context.new_segment:
            self.prompt_ids = self.context.ids
        else:
            self.prompt_ids += turn.action_ids + self.context.ids
        self._check_budget()

    def _check_budget(self) -> None:
        if len(self.turns) >= self.max_turns or len(self.prompt_ids) >= self.settings.max_context:
            self._status = Status.TRUNCATED

    def finish(self) -> Trajectory:
        """The scored trajectory.

        Raises:
            RuntimeError: the run is not finished.
        """
        if self._status is None:
            raise RuntimeError(f"the episode {self.task.id}/{self.member} is not finished")
        if self._error is not None:
            return broken_trajectory(self.task, self.member, self._error, turns=self.turns, fork=self.fork)
        return Trajectory(
            task_id=self.task.id,
            member=self.member,
            turns=tuple(self.turns),
            status=self._status,
            reward=float(self._result.reward) if self._result is not None else 0.0,
            reward_parts=dict(self._result.reward_parts) if self._result is not None else {},
            fork=self.fork,
            error=self._too_long(),
            correction_weights=self.correction_weights,
        )

    def _too_long(self) -> str | None:
        if self.turns or self._status is not Status.TRUNCATED:
            return self._excess
        return (
            f"no turn was taken: the opening has {len(self.prompt_ids)} tokens, "
            f"rollout.max_context is {self.settings.max_context}"
        )


def render_opening(episode: Episode, renderer: Renderer) -> tuple[int, ...]:
    """The prompt of the first turn.

    Raises:
        InfrastructureError: the episode failed to give its opening messages or tools.
    """
    opening = _opening_of(episode)
    return renderer.opening(opening.messages, opening.tools)


def _opening_of(episode: Episode) -> Opening:
    messages = environment_call(lambda: tuple(episode.messages))
    tools = environment_call(lambda: tuple(episode.tools))
    return Opening(messages=messages, tools=tools)
