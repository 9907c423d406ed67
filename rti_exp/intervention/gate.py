"""Scoring corrections for the gate and for the weights rho, and the perplexity gate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

from rti_exp.config.settings import GateSettings, ReweightSettings, Scorer
from rti_exp.engines.base import Engine, EngineUnavailable, ScoreRequest
from rti_exp.engines.failed_requests import score_each
from rti_exp.intervention.case import Checked, Ended, Scored
from rti_exp.objective.perplexity import log_perplexity, passes_gate
from rti_exp.objective.weights import correction_weights
from rti_exp.types import Failure, FailureKind, Outcome


class Gate(Protocol):
    """Decides whether a correction is close enough to the policy."""

    never_opens: bool
    """If True, no role is asked and nothing is spent."""
    shadow: bool
    """Whether dropped corrections are continued for the record."""

    def passes(self, log_probs: Sequence[float]) -> bool:
        """
        Args:
            log_probs: Of the correction's tokens, under the rollout prompt, rollout weights and temperature 1.
        """
        ...


class PerplexityGate:
    """Passes corrections with a perplexity of at most `gate.delta`."""

    def __init__(self, settings: GateSettings) -> None:
        self.delta = settings.delta
        self.shadow = settings.shadow
        self.never_opens = settings.never_opens

    def passes(self, log_probs: Sequence[float]) -> bool:
        return passes_gate(log_perplexity(log_probs), self.delta)


class CorrectionScorer:
    """Scores corrections under the rollout prompt (gate, behaviour log-probs) and the correction prompt (pi_cal).

    Args:
        engine: The policy's; it scores pi_roll.
        calibration_engine: Scores pi_cal; None if rho is always 1.
    """

    def __init__(self, *, engine: Engine, calibration_engine: Engine | None, eps_cal: float) -> None:
        self.engine = engine
        self.calibration_engine = calibration_engine
        self.eps_cal = eps_cal

    def score(self, checked: Sequence[Checked]) -> tuple[list[Scored], list[Ended]]:
        """The scored corrections that passed the checks, and attempts that end here.

        Rejected corrections are scored for the record and end with their rejection. If another engine scores pi_cal and
        is down, or a model's context window is too small, the attempt ends.

        Raises:
            EngineUnavailable: the policy's engine stayed down.
        """
        if not checked:
            return [], []
        rollout, calibration = self._log_probs(checked)
        scored: list[Scored] = []
        ended: list[Ended] = []
        for attempt, log_probs, calibration_log_probs in zip(checked, rollout, calibration, strict=True):
            if isinstance(log_probs, Failure):
                ended.append(_failed(attempt, attempt, log_probs))
                continue
            usable = not isinstance(calibration_log_probs, Failure)
            reached = Scored(
                checked=attempt,
                log_probs=log_probs,
                perplexity=perplexity(log_probs),
                calibration_log_probs=calibration_log_probs if usable else (),
                weights=self._weights(log_probs, calibration_log_probs) if usable else (),
            )
            if not usable:
                ended.append(_failed(attempt, reached, calibration_log_probs))
            elif attempt.rejection is not None:
                ended.append(Ended(reached=reached, outcome=attempt.rejection))
            else:
                scored.append(reached)
        return scored, ended

    def _log_probs(
        self, checked: Sequence[Checked]
    ) -> tuple[Sequence[tuple[float, ...] | Failure], Sequence[tuple[float, ...] | Failure]]:
        """Log-probs under the rollout prompt and under the correction prompt; one call if one engine scores both."""
        corrected = [attempt.corrected for attempt in checked]
        rollout = [
            ScoreRequest(prompt_ids=attempt.prompt_ids, token_ids=attempt.correction.action_ids)
            for attempt in corrected
        ]
        calibration = [
            ScoreRequest(prompt_ids=attempt.correction.prompt_ids, token_ids=attempt.correction.action_ids)
            for attempt in corrected
        ]
        if self.calibration_engine is self.engine:
            scores = score_each(self.engine, rollout + calibration)
            return scores[: len(checked)], scores[len(checked) :]
        rollout_scores = score_each(self.engine, rollout)
        if self.calibration_engine is None:
            return rollout_scores, [()] * len(checked)
        try:
            return rollout_scores, score_each(self.calibration_engine, calibration)
        except EngineUnavailable as error:
            return rollout_scores, [Failure(kind=FailureKind.UNAVAILABLE, reason=str(error))] * len(checked)

    def _weights(self, log_probs: tuple[float, ...], calibration: tuple[float, ...]) -> tuple[float, ...]:
        if self.calibration_engine is None:
            return (1.0,) * len(log_probs)
        calibration_T, rollout_T = (torch.tensor(stream, dtype=torch.float64) for stream in (calibration, log_probs))
        return tuple(correction_weights(calibration_T, rollout_T, self.eps_cal).tolist())


def calibration_engine(settings: ReweightSettings, *, policy: Engine, source: Engine) -> Engine | None:
    """The engine that scores pi_cal; None if rho is always 1."""
    if settings.eps_cal == 0 or settings.scorer == Scorer.off:
        return None
    return source if settings.scorer == Scorer.source else policy


def perplexity(log_probs: Sequence[float]) -> float:
    """exp(-mean log-prob); inf where a float overflows."""
    try:
        return math.exp(log_perplexity(log_probs))
    except OverflowError:
        return math.inf


def _failed(attempt: Checked, reached: Checked | Scored, failure: Failure) -> Ended:
    """A rejected correction keeps its rejection."""
    if attempt.rejection is not None:
        return Ended(reached=reached, outcome=attempt.rejection)
    unavailable = failure.kind is FailureKind.UNAVAILABLE
    outcome = Outcome.ROLE_UNAVAILABLE if unavailable else Outcome.NO_CORRECTION
    return Ended(reached=reached, outcome=outcome, error=failure.reason)
