"""Continuing a rollout after its corrected step."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.config.settings import RolloutSettings
from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.intervention.case import Attempt
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.environment_calls import replayed_episode
from rti_exp.rollout.live_episode import EpisodeRules, LiveEpisode
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Author, Fork, Outcome


class Continuation:
    """Brings the environment before the harmful step, takes the correction, lets the policy go on."""

    def __init__(
        self, *, environment: Environment, renderer: Renderer, collector: Collector, settings: RolloutSettings
    ) -> None:
        self.environment = environment
        self.renderer = renderer
        self.collector = collector
        self.settings = settings

    def run(self, attempts: Sequence[Attempt], iteration: int) -> None:
        """Gives each attempt its child, all continued in one batch.

        One whose state could not be reached again is dropped as a replay mismatch; a shadow attempt keeps
        the outcome it has, and notes the error.
        """
        live: list[Attempt] = []
        runs: list[LiveEpisode] = []
        for attempt in attempts:
            try:
                run = self._resumed(attempt)
            except InfrastructureError as error:
                attempt.drop(Outcome.REPLAY_MISMATCH if attempt.outcome is None else attempt.outcome, str(error))
                continue
            run.take_turn(attempt.written.action_ids, attempt.log_probs, Author.CORRECTOR)
            live.append(attempt)
            runs.append(run)
        if not runs:
            return
        children = self.collector.run(runs, iteration=iteration, purpose="continue")
        for attempt, child in zip(live, children, strict=True):
            attempt.child = child
            attempt.error = child.error

    def _resumed(self, attempt: Attempt) -> LiveEpisode:
        """An episode that stands before the harmful step.

        Raises:
            ReplayMismatch: the replay led to another state.
            InfrastructureError: the environment broke in the replay.
        """
        task, trajectory, step = attempt.case.task, attempt.case.trajectory, attempt.step
        turns = trajectory.turns[:step]
        episode = replayed_episode(self.environment, task, turns, attempt.turn.state_hash)
        return LiveEpisode(
            task,
            trajectory.member,
            episode,
            EpisodeRules(renderer=self.renderer, settings=self.settings, max_turns=self.environment.max_turns),
            turns=turns,
            fork=Fork(parent=trajectory.member, step=step, intervention_id=attempt.id),
            correction_weights=attempt.weights,
        )
