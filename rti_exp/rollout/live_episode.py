"""One live episode: the ids so far, the remaining budget, and the turns taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.envs.base import Episode, InfrastructureError, StepResult
from rti_exp.envs.contract import checked_opening
from rti_exp.rollout.environment_calls import broken_trajectory, environment_call, hash_of, step_of
from rti_exp.rollout.renderer import Renderer
from rti_exp.rollout.segments import Context, Opening, context_after
from rti_exp.types import Author, Fork, Status, Task, Trajectory, Turn, segment_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """How the episodes of an environment are rendered and when they end."""

    renderer: Renderer
    settings: RolloutSettings
    max_turns: int


def read_opening(episode: Episode) -> Opening:
    """
    Raises:
        InfrastructureError: the episode failed to give its opening messages or tools.
    """
    messages, tools = environment_call(lambda: checked_opening(episode.messages, episode.tools))
    return Opening(messages=messages, tools=tools)


class LiveEpisode:
    """The mutable state of a live episode; `finish` returns the immutable `Trajectory`.

    Until it is `finished`, `prompt_ids` is the complete prompt of the next turn: all ids of its segment so far, ending
    with the header of an assistant turn. It finishes when the environment ends it (ok), when `max_turns` turns are
    taken or no further token fits into `settings.max_context` (truncated, reward 0.0), or when the environment fails.
    A corrected turn that ends beyond `settings.max_context` truncates it too, whatever the environment answered.

    Args:
        episode: An episode in the state that `turns` led to.
        turns: Earlier turns, which it continues.
        fork: Where it left its parent. The intervention's id joins the seed, so that two corrections of a step draw
            differently.
        correction_weights: rho of the corrected turn's tokens.
        seed_parts: Further parts of the seed of its draws, where task and member do not distinguish two episodes.
        opening_ids: The rendered opening of an episode without turns, if it was rendered before.

    Raises:
        InfrastructureError: the episode failed to give its opening messages or tools.
    """

    def __init__(
        self,
        task: Task,
        member: int,
        episode: Episode,
        rules: EpisodeRules,
        *,
        turns: Sequence[Turn] = (),
        fork: Fork | None = None,
        correction_weights: tuple[float, ...] = (),
        seed_parts: tuple[int | str, ...] = (),
        opening_ids: tuple[int, ...] | None = None,
    ) -> None:
        self.task = task
        self.member = member
        self.episode = episode
        self.rules = rules
        self.turns = list(turns)
        self.fork = fork
        self.correction_weights = correction_weights
        self.seed_parts = seed_parts if fork is None else (*seed_parts, fork.intervention_id)
        self._opening = read_opening(episode)
        if opening_ids is None and not turns:
            opening_ids = rules.renderer.opening(self._opening.messages, self._opening.tools)
        self.context = (
            Context(ids=opening_ids) if opening_ids is not None else context_after(rules.renderer, turns, self._opening)
        )
        """The next turn's ids before its action."""
        self.prompt_ids = self.context.ids if self.context.new_segment else segment_ids(self.turns) + self.context.ids
        self._status: Status | None = None
        self._result: StepResult | None = None
        self._failure: InfrastructureError | None = None
        self._check_budget()

    @property
    def finished(self) -> bool:
        return self._status is not None

    @property
    def step(self) -> int:
        """Index of the next turn."""
        return len(self.turns)

    def request(self, seed: int, *, temperature: float) -> GenerateRequest:
        """The request to an engine for the next turn."""
        settings = self.rules.settings
        sampling = Sampling(
            temperature=temperature,
            top_p=settings.top_p,
            max_tokens=min(settings.max_tokens, settings.max_context - len(self.prompt_ids)),
            stop_ids=self.rules.renderer.stop_ids,
        )
        return GenerateRequest(prompt_ids=self.prompt_ids, sampling=sampling, seed=seed)

    def take_turn(
        self,
        action_ids: Sequence[int],
        log_probs: Sequence[float],
        author: Author,
        *,
        importance_weights: Sequence[float] = (),
    ) -> None:
        """Takes a turn, sampled or corrected: the environment executes it and the episode moves to the next turn.

        A turn that was cut off (its last id is not a stop id) is executed as it is.

        Raises:
            RuntimeError: the episode is finished.
            ValueError: the numbers of ids and log-probs differ.
        """
        if self.finished:
            raise RuntimeError(f"the episode {self.task.id}/{self.member} is finished")
        if len(action_ids) != len(log_probs):
            raise ValueError(f"{len(action_ids)} action ids with {len(log_probs)} log-probs")
        message = self.rules.renderer.message(action_ids)
        try:
            state_hash = hash_of(self.episode)
            result = step_of(self.episode, message)
        except InfrastructureError as error:
            self._status, self._failure = Status.INFRASTRUCTURE_FAILURE, error
            return
        turn = Turn(
            context_ids=self.context.ids,
            action_ids=tuple(action_ids),
            action_log_probs=tuple(log_probs),
            message=message,
            observations=result.observations,
            author=author,
            state_hash=state_hash,
            new_segment=self.context.new_segment,
            importance_weights=tuple(importance_weights),
        )
        self.turns.append(turn)
        self._advance(turn, result)

    def _advance(self, turn: Turn, result: StepResult) -> None:
        if len(self.prompt_ids) + len(turn.action_ids) > self.rules.settings.max_context:
            self._status = Status.TRUNCATED
            return
        if result.done:
            self._status, self._result = Status.OK, result
            return
        self.context = context_after(self.rules.renderer, self.turns, self._opening)
        if self.context.new_segment:
            self.prompt_ids = self.context.ids
        else:
            self.prompt_ids += turn.action_ids + self.context.ids
        self._check_budget()

    def _check_budget(self) -> None:
        if len(self.turns) >= self.rules.max_turns or len(self.prompt_ids) >= self.rules.settings.max_context:
            self._status = Status.TRUNCATED

    def finish(self) -> Trajectory:
        """The scored trajectory.

        Raises:
            RuntimeError: the episode is not finished.
        """
        if self._status is None:
            raise RuntimeError(f"the episode {self.task.id}/{self.member} is not finished")
        if self._failure is not None:
            return broken_trajectory(self.task, self.member, self._failure, turns=self.turns, fork=self.fork)
        return Trajectory(
            task_id=self.task.id,
            member=self.member,
            turns=tuple(self.turns),
            status=self._status,
            reward=self._result.reward if self._result is not None else 0.0,
            reward_parts=self._result.reward_parts if self._result is not None else {},
            fork=self.fork,
            error=self._excess(),
            correction_weights=self.correction_weights,
        )

    def _excess(self) -> str | None:
        """The error of an episode that exceeds the context by its opening or by a correction; else None."""
        if self._status is not Status.TRUNCATED:
            return None
        limit = self.rules.settings.max_context
        if not self.turns:
            return f"no turn was taken: the opening has {len(self.prompt_ids)} tokens, rollout.max_context is {limit}"
        tokens = len(segment_ids(self.turns))
        return f"the trajectory has {tokens} tokens, rollout.max_context is {limit}" if tokens > limit else None
