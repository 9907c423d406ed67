"""Continuing a rollout after its corrected step."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.envs.base import Environment, Episode
from rti_exp.intervention.case import Attempt
from rti_exp.rollout.collect import Collector
from rti_exp.rollout.episode import EpisodeRun
from rti_exp.rollout.render import Renderer
from rti_exp.settings import RolloutSettings
from rti_exp.types import Author, Fork, Outcome


class ReplayMismatch(Exception):
    """The environment could not be brought to the state before the harmful step."""


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
        runs: list[EpisodeRun] = []
        for attempt in attempts:
            try:
                episode = self._episode_before(attempt)
            except ReplayMismatch as error:
                attempt.drop(Outcome.REPLAY_MISMATCH if attempt.outcome is None else attempt.outcome, str(error))
                continue
            live.append(attempt)
            runs.append(self._resumed(attempt, episode))
        if not runs:
            return
        children = self.collector.run(runs, iteration=iteration, purpose="continue")
        for attempt, child in zip(live, children, strict=True):
            attempt.child = child
            attempt.error = child.error

    def _episode_before(self, attempt: Attempt) -> Episode:
        messages = [turn.message for turn in attempt.case.turns[: attempt.step]]
        try:
            episode = self.environment.start(attempt.case.task).fork(messages)
            found = episode.state_hash()
        except Exception as error:  # the environment is foreign code: whatever it raises, the replay failed
            raise ReplayMismatch(f"{type(error).__name__}: {error}") from error
        if found != attempt.turn.state_hash:
            raise ReplayMismatch(f"state {found} instead of {attempt.turn.state_hash}")
        return episode

    def _resumed(self, attempt: Attempt, episode: Episode) -> EpisodeRun:
        trajectory = attempt.case.trajectory
        run = EpisodeRun.resume(
            attempt.case.task,
            trajectory.member,
            episode,
            trajectory.turns[: attempt.step],
            self.renderer,
            max_turns=self.environment.max_turns,
            settings=self.settings,
            fork=Fork(parent=trajectory.member, step=attempt.step, intervention_id=attempt.id),
            correction_weights=attempt.weights,
            # Two corrections of one trajectory draw differently.
            draw_key=str(attempt.sample),
        )
        run.force(attempt.written.action_ids, attempt.log_probs, Author.CORRECTOR)
        return run
