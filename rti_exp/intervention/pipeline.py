"""Rollout-time intervention on the groups of one iteration in which every trajectory failed.

open cases -> validate -> correct -> unchanged? -> verify -> score, gate -> continue -> merge

Each stage takes the cases of all groups in one batch. An attempt that drops out gets its outcome there and
is recorded like the others. Source: arXiv 2610.13438; `corrections` > 1 and the seeded draw among several
successes are ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rti_exp.config.settings import (
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolloutSettings,
    Scorer,
    SettingsError,
)
from rti_exp.engines.base import Engine, EngineUnavailable
from rti_exp.envs.base import Environment
from rti_exp.intervention.case import Attempt, Case, opened
from rti_exp.intervention.continuation import Continuation
from rti_exp.intervention.corrector import Corrector, NoCorrection, Rewrite
from rti_exp.intervention.gate import CorrectionScorer, calibration_engine, is_open
from rti_exp.intervention.guarded import RoleFailed, answers_of
from rti_exp.intervention.merge import merged, settle
from rti_exp.intervention.meter import Meter
from rti_exp.intervention.select import select
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import REJECTED, Verifier, rejection
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Evidence, Group, Message, Outcome, Verdict

WITHOUT_FAULT = {
    "no_fault": Outcome.NO_FAULT,
    "no_verdict": Outcome.NO_VERDICT,
    "unavailable": Outcome.ROLE_UNAVAILABLE,
}
"""The outcome of a case in which no harmful step was named, by the kind of its verdict."""


class Interventions:
    """Tries to turn failures of all-failed groups into successes.

    With no corrector, or a gate that never opens (and no shadow), groups pass through untouched and nothing
    is spent.

    Args:
        engine: the policy's; it scores the gate and, by default, pi_cal.
        corrector: None is `corrector=none`.
        seed: the run's; every draw is derived from it.
    Raises:
        SettingsError: `reweight.scorer=source` with a corrector that cannot score the policy's ids.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        renderer: Renderer,
        collector: Collector,
        engine: Engine,
        validator: Validator,
        corrector: Corrector | None,
        verifier: Verifier,
        gate: GateSettings,
        reweight: ReweightSettings,
        settings: InterventionSettings,
        rollout: RolloutSettings,
        seed: int,
    ) -> None:
        if reweight.scorer == Scorer.source and corrector is not None and not corrector.same_tokenizer:
            raise SettingsError("reweight.scorer='source': must be policy or off, the corrector has another tokenizer")
        self.environment = environment
        self.validator = validator
        self.corrector = corrector
        self.verifier = verifier
        self.gate = gate
        self.settings = settings
        self.rollout = rollout
        self.seed = seed
        source = engine if corrector is None else corrector.engine
        self._scorer = CorrectionScorer(
            engine=engine,
            calibration_engine=calibration_engine(reweight, policy=engine, source=source),
            eps_cal=reweight.eps_cal,
        )
        self._continuation = Continuation(
            environment=environment, renderer=renderer, collector=collector, settings=rollout
        )
        self._meter = Meter([engine, validator.engine, verifier.engine, source])

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds of the last call: "roles", "score", "continue"."""
        return dict(self._meter.seconds)

    @property
    def role_tokens(self) -> dict[str, int]:
        """Tokens of the last call: "generated" by roles, "scored", and "continued" by the policy after them."""
        generated, scored = self._meter.generated, self._meter.scored
        return {
            "generated": generated["roles"],
            "scored": sum(scored.values()),
            "continued": generated["continue"],
        }

    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]:
        """The groups in the same order; those that did not all fail are the same objects.

        Raises:
            EngineUnavailable: the policy's engine stayed down (a role's costs attempts only).
        """
        self._meter.reset()
        if self.corrector is None or (self.gate.never_opens and not self.gate.shadow):
            return list(groups)
        with self._meter.stage("roles"):
            attempts = self._attempts(self._open(groups, iteration), self.corrector)
            self._verify([attempt for attempt in attempts if attempt.outcome is None])
        with self._meter.stage("score"):
            self._scorer.score([attempt for attempt in attempts if attempt.outcome in (None, *REJECTED)])
            self._close_gate([attempt for attempt in attempts if attempt.outcome is None])
        with self._meter.stage("continue"):
            self._continuation.run([one for one in attempts if one.outcome is None or one.shadow], iteration)
        settle(attempts, self.settings.success_threshold)
        return self._merged(groups, attempts)

    def _open(self, groups: Sequence[Group], iteration: int) -> list[Case | Attempt]:
        cases: list[Case] = []
        seen: Counter[str] = Counter()
        for index, group in enumerate(groups):
            occurrence, seen[group.task.id] = seen[group.task.id], seen[group.task.id] + 1
            if not group.all_failed(self.settings.success_threshold):
                continue
            valid = [
                Case(
                    group=index,
                    occurrence=occurrence,
                    task=group.task,
                    trajectory=trajectory,
                    evidence=Evidence(level=self.settings.evidence.value),
                    seed=self.seed,
                    iteration=iteration,
                )
                for trajectory in group.sampled
                if trajectory.valid
            ]
            cases += select(valid, self.settings.max_per_group, group_size=len(group.sampled))
        return [opened(case, self.environment) for case in cases]

    def _attempts(self, cases_or_lost: Sequence[Case | Attempt], corrector: Corrector) -> list[Attempt]:
        """Validates and corrects: every attempt of the iteration, with its correction or its outcome."""
        attempts = [one for one in cases_or_lost if isinstance(one, Attempt)]
        cases = [one for one in cases_or_lost if isinstance(one, Case)]
        try:
            verdicts = answers_of(self.validator.judge, cases)
        except EngineUnavailable as error:
            lost = Verdict(kind="no_verdict")
            return attempts + [
                Attempt(case=case, sample=0, verdict=lost, outcome=Outcome.ROLE_UNAVAILABLE, error=str(error))
                for case in cases
            ]
        harmful: list[Attempt] = []
        for case, verdict in zip(cases, verdicts, strict=True):
            if isinstance(verdict, RoleFailed):
                lost, outcome = Verdict(kind="no_verdict"), Outcome.ROLE_FAILED
                attempts.append(Attempt(case=case, sample=0, verdict=lost, outcome=outcome, error=verdict.why))
            elif verdict.kind == "harmful":
                samples = range(self.settings.corrections)
                harmful += [Attempt(case=case, sample=sample, verdict=verdict) for sample in samples]
            else:
                error = verdict.reason if verdict.kind == "unavailable" else None
                attempts.append(
                    Attempt(case=case, sample=0, verdict=verdict, outcome=WITHOUT_FAULT[verdict.kind], error=error)
                )
        _correct(harmful, corrector, self.rollout.max_tokens)
        return attempts + harmful

    def _verify(self, attempts: Sequence[Attempt]) -> None:
        try:
            checks = answers_of(self.verifier.check, attempts)
        except EngineUnavailable as error:
            for attempt in attempts:
                attempt.drop(Outcome.ROLE_UNAVAILABLE, str(error))
            return
        for attempt, made in zip(attempts, checks, strict=True):
            if isinstance(made, RoleFailed):
                attempt.drop(Outcome.ROLE_FAILED, made.why)
                continue
            attempt.checks = made
            attempt.outcome = rejection(made)
            if attempt.outcome is Outcome.ROLE_UNAVAILABLE:
                attempt.error = next(check.answer for check in made if check.lost)

    def _close_gate(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not is_open(attempt.log_probs, self.gate.delta):
                attempt.drop(Outcome.TOO_PERPLEXING)
                attempt.shadow = self.gate.shadow

    def _merged(self, groups: Sequence[Group], attempts: Sequence[Attempt]) -> list[Group]:
        ordered = sorted(attempts, key=lambda one: (one.case.trajectory.member, one.sample))
        by_group: dict[int, list[Attempt]] = {}
        for attempt in ordered:
            by_group.setdefault(attempt.case.group, []).append(attempt)
        return [
            merged(group, by_group[index], self.settings.merge) if index in by_group else group
            for index, group in enumerate(groups)
        ]


def _correct(attempts: Sequence[Attempt], corrector: Corrector, max_tokens: int) -> None:
    rewrites = [Rewrite.of(one.case, one.verdict, one.sample) for one in attempts]
    try:
        corrections = answers_of(corrector.correct, rewrites)
    except EngineUnavailable as error:
        for attempt in attempts:
            attempt.drop(Outcome.ROLE_UNAVAILABLE, str(error))
        return
    for attempt, correction in zip(attempts, corrections, strict=True):
        if isinstance(correction, RoleFailed):
            attempt.drop(Outcome.ROLE_FAILED, correction.why)
            continue
        if isinstance(correction, NoCorrection):
            outcome = Outcome.ROLE_UNAVAILABLE if correction.unavailable else Outcome.NO_CORRECTION
            attempt.drop(outcome, correction.why)
            continue
        attempt.correction = correction
        if len(correction.action_ids) > max_tokens:
            error = f"the correction has {len(correction.action_ids)} tokens, rollout.max_tokens is {max_tokens}"
            attempt.drop(Outcome.NO_CORRECTION, error)
        elif same_step(correction.message, attempt.turn.message):
            attempt.drop(Outcome.UNCHANGED)


def same_step(first: Message, second: Message) -> bool:
    """Whether two turns do the same, whatever was thought before: then what follows differs by luck alone."""
    return replace(first, thinking="") == replace(second, thinking="")
