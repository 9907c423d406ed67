"""Continuing a rollout after its corrected step."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.engines.base import ScoreRequest
from rti_exp.envs.base import InfrastructureError
from rti_exp.intervention.case import Continued, Ended, Scored
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.environment_calls import replayed_episode
from rti_exp.rollout.live_episode import LiveEpisode
from rti_exp.types import Author, Fork, Outcome


class Continuation:
    """Restores the state before the harmful step, executes the correction, and lets the policy continue.

    Args:
        collector: The policy's; its environment, renderer and rollout settings apply.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def run(
        self, accepted: Sequence[Scored], shadows: Sequence[Scored], iteration: int
    ) -> tuple[list[Continued], list[Ended]]:
        """The continued attempts, all continued in one batch, and those whose state could not be restored.

        Shadows were dropped by the gate, and are continued only for the record.
        """
        live: list[tuple[Scored, bool]] = []
        episodes: list[LiveEpisode] = []
        ended: list[Ended] = []
        for scored, shadow in (*((scored, False) for scored in accepted), *((scored, True) for scored in shadows)):
            try:
                episode = self._resumed(scored)
            except InfrastructureError as error:
                outcome = Outcome.TOO_PERPLEXING if shadow else Outcome.REPLAY_MISMATCH
                ended.append(Ended(reached=scored, outcome=outcome, error=str(error), shadow=shadow))
                continue
            live.append((scored, shadow))
            episodes.append(episode)
        for (scored, _), episode, log_probs in zip(live, episodes, self._behaviour([s for s, _ in live]), strict=True):
            episode.take_turn(scored.corrected.correction.action_ids, log_probs, Author.CORRECTOR)
        children = self._collector.run(episodes, iteration=iteration, purpose="continue") if episodes else []
        continued = [
            Continued(scored=scored, child=child, shadow=shadow)
            for (scored, shadow), child in zip(live, children, strict=True)
        ]
        return continued, ended

    def _behaviour(self, scored: Sequence[Scored]) -> list[tuple[float, ...]]:
        """Log-probs of the corrections' tokens in the distribution that samples rollouts; the gate's are at 1."""
        temperature = self._collector.settings.temperature
        if temperature == 1 or not scored:
            return [attempt.log_probs for attempt in scored]
        return self._collector.engine.score(
            [
                ScoreRequest(
                    prompt_ids=attempt.corrected.prompt_ids,
                    token_ids=attempt.corrected.correction.action_ids,
                    temperature=temperature,
                )
                for attempt in scored
            ]
        )

    def _resumed(self, scored: Scored) -> LiveEpisode:
        """An episode in the state before the harmful step.

        Raises:
            ReplayMismatch: the replay led to another state.
            InfrastructureError: the environment broke in the replay.
        """
        collector, harmful = self._collector, scored.corrected.harmful
        task, trajectory, step = harmful.case.task, harmful.case.trajectory, harmful.step
        turns = trajectory.turns[:step]
        episode = replayed_episode(collector.environment, task, turns, harmful.turn.state_hash)
        return LiveEpisode(
            task,
            trajectory.member,
            episode,
            collector.rules,
            turns=turns,
            fork=Fork(parent=trajectory.member, step=step, intervention_id=harmful.id),
            correction_weights=scored.weights,
        )
