"""Scoring corrections: the perplexity that the gate compares, and the weights rho."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rti_exp.config.settings import ReweightSettings, Scorer
from rti_exp.engines.base import Engine, EngineUnavailable, ScoreRequest
from rti_exp.engines.fitting import TooLong, score_fitting
from rti_exp.intervention.case import Attempt
from rti_exp.objective.perplexity import log_perplexity, passes_gate
from rti_exp.objective.weights import correction_weights
from rti_exp.types import Outcome


class CorrectionScorer:
    """Scores corrections under the rollout prompt (gate, behaviour log-probs) and the correction prompt (pi_cal).

    Args:
        engine: the policy's.
        calibration_engine: which scores pi_cal; None if nobody does (rho is 1). pi_roll is always the policy's.
    """

    def __init__(self, *, engine: Engine, calibration_engine: Engine | None, eps_cal: float) -> None:
        self.engine = engine
        self.calibration_engine = calibration_engine
        self.eps_cal = eps_cal

    def score(self, attempts: Sequence[Attempt]) -> None:
        """Fills in log-probs, perplexity and weights; one call in all if the policy scores pi_cal too.

        If another engine that scores pi_cal is down, attempts that are in the running end as unavailable; one whose
        prompt and correction exceed the positions of a model that is to score them ends without a correction.

        Raises:
            EngineUnavailable: the policy's engine stayed down.
        """
        if not attempts:
            return
        requests = [
            ScoreRequest(
                prompt_ids=attempt.case.trajectory.prompt_ids(attempt.step), token_ids=attempt.written.action_ids
            )
            for attempt in attempts
        ]
        together = self.calibration_engine is self.engine
        scores = score_fitting(self.engine, requests + _calibration(attempts) if together else requests)
        for attempt, log_probs in zip(attempts, scores[: len(attempts)], strict=True):
            if isinstance(log_probs, TooLong):
                _drop_running(attempt, Outcome.NO_CORRECTION, log_probs.why)
                continue
            attempt.log_probs = log_probs
            attempt.perplexity = perplexity(log_probs)
        if self.calibration_engine is None:
            calibration = [()] * len(attempts)
        elif together:
            calibration = scores[len(attempts) :]
        else:
            try:
                calibration = score_fitting(self.calibration_engine, _calibration(attempts))
            except EngineUnavailable as error:
                for attempt in attempts:
                    _drop_running(attempt, Outcome.ROLE_UNAVAILABLE, str(error))
                return
        self._weigh(attempts, calibration)

    def _weigh(self, attempts: Sequence[Attempt], calibration: Sequence[tuple[float, ...] | TooLong]) -> None:
        for attempt, log_probs in zip(attempts, calibration, strict=True):
            if isinstance(log_probs, TooLong):
                _drop_running(attempt, Outcome.NO_CORRECTION, log_probs.why)
            elif attempt.log_probs:
                attempt.calibration_log_probs = log_probs
                attempt.weights = self._weights(attempt.log_probs, log_probs)

    def _weights(self, log_probs: tuple[float, ...], calibration: tuple[float, ...]) -> tuple[float, ...]:
        if self.calibration_engine is None:
            return (1.0,) * len(log_probs)
        calibration_T, rollout_T = (torch.tensor(stream, dtype=torch.float64) for stream in (calibration, log_probs))
        return tuple(correction_weights(calibration_T, rollout_T, self.eps_cal).tolist())


def calibration_engine(settings: ReweightSettings, *, policy: Engine, source: Engine) -> Engine | None:
    """Who scores pi_cal; None if rho is 1 whatever it would be."""
    if settings.eps_cal == 0 or settings.scorer == Scorer.off:
        return None
    return source if settings.scorer == Scorer.source else policy


def perplexity(log_probs: Sequence[float]) -> float:
    """exp(-mean log-prob), inf where that is more than a float holds."""
    try:
        return math.exp(log_perplexity(log_probs))
    except OverflowError:
        return math.inf


def is_open(log_probs: Sequence[float], delta: float) -> bool:
    """Whether the gate lets a correction with these rollout log-probs through."""
    return passes_gate(log_perplexity(log_probs), delta)


def _drop_running(attempt: Attempt, outcome: Outcome, error: str) -> None:
    """An attempt that has an outcome already, and is scored for the record only, keeps it."""
    if attempt.outcome is None:
        attempt.drop(outcome, error)


def _calibration(attempts: Sequence[Attempt]) -> list[ScoreRequest]:
    return [
        ScoreRequest(prompt_ids=attempt.written.prompt_ids, token_ids=attempt.written.action_ids)
        for attempt in attempts
    ]
