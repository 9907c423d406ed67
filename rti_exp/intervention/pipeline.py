"""Rollout-time intervention on the groups of one iteration in which every trajectory failed.

open cases -> validate -> correct -> unchanged? -> verify -> score -> gate -> continue -> merge

Each stage takes the cases of all groups in one batch. An attempt that leaves the pipeline is recorded with its outcome.
Source: arXiv 2610.13438; `corrections` > 1 and the seeded draw among several successes are our additions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rti_exp.config.settings import InterventionSettings, ReweightSettings, Scorer, SettingsError
from rti_exp.engines.base import Engine
from rti_exp.envs.base import InfrastructureError
from rti_exp.intervention.case import Case, Checked, Corrected, Ended, HarmfulStep, Scored, with_evidence
from rti_exp.intervention.continuation import Continuation
from rti_exp.intervention.corrector import EMPTY, Corrector
from rti_exp.intervention.cost import CostMeter
from rti_exp.intervention.gate import CorrectionScorer, Gate, calibration_engine
from rti_exp.intervention.merge import merge_group, settle
from rti_exp.intervention.role_calls import call_role
from rti_exp.intervention.selection import select
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier, lost_reason, rejection
from rti_exp.rollout.collector import Collector
from rti_exp.types import Evidence, Failure, FailureKind, Group, Message, Outcome

WITHOUT_FAULT = {"no_fault": Outcome.NO_FAULT, "no_verdict": Outcome.NO_VERDICT}
"""The outcome of a verdict that names no step."""
FAILURES = {FailureKind.UNAVAILABLE: Outcome.ROLE_UNAVAILABLE, FailureKind.RAISED: Outcome.ROLE_FAILED}
"""The outcome of a role's failure; any other failure means that it gave nothing usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervened:
    """The groups after the interventions, and the cost on this rank."""

    groups: list[Group]
    tokens: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The roles of an intervention. `corrector` None is `corrector=none`."""

    validator: Validator
    corrector: Corrector | None
    verifier: Verifier
    gate: Gate


class Interventions:
    """Tries to turn failures of all-failed groups into successes.

    With no corrector, or a gate that never opens (and no shadow), groups pass through untouched and nothing is spent.

    Args:
        collector: The policy's; its engine scores the gate and, by default, pi_cal.

    Raises:
        SettingsError: `reweight.scorer=source` with a corrector that cannot score the policy's ids.
    """

    def __init__(
        self, *, collector: Collector, roles: Roles, reweight: ReweightSettings, settings: InterventionSettings
    ) -> None:
        corrector = roles.corrector
        if reweight.scorer == Scorer.source and corrector is not None and not corrector.same_tokenizer:
            raise SettingsError("reweight.scorer='source': must be policy or off, the corrector has another tokenizer")
        self.collector = collector
        self.roles = roles
        self.settings = settings
        engine = collector.engine
        source = engine if corrector is None else corrector.engine
        self._scorer = CorrectionScorer(
            engine=engine,
            calibration_engine=calibration_engine(reweight, policy=engine, source=source),
            eps_cal=reweight.eps_cal,
        )
        self._continuation = Continuation(collector)
        self._engines: list[Engine] = [engine, roles.validator.engine, roles.verifier.engine, source]

    def __call__(self, groups: Sequence[Group], iteration: int) -> Intervened:
        """The groups in the same order; groups that did not all fail are the same objects.

        Raises:
            EngineUnavailable: the policy's engine stayed down. (A role's engine costs attempts only.)
        """
        gate, corrector = self.roles.gate, self.roles.corrector
        if corrector is None or (gate.never_opens and not gate.shadow):
            return Intervened(groups=list(groups))
        meter, ended = CostMeter(self._engines), []
        with meter.stage("roles"):
            cases = self._open(groups, iteration, ended)
            harmful = self._validate(cases, ended)
            corrected = self._correct(harmful, corrector, ended)
            checked = self._verify(corrected, ended)
        with meter.stage("score"):
            scored, unscored = self._scorer.score(checked)
            passed, shadows = self._pass_gate(scored, ended)
        with meter.stage("continue"):
            continued, lost = self._continuation.run(passed, shadows, iteration)
        ended += [*unscored, *lost, *settle(continued, self.settings.success_threshold)]
        return Intervened(groups=self._merge(groups, ended), tokens=meter.tokens, seconds=meter.seconds)

    def _open(self, groups: Sequence[Group], iteration: int, ended: list[Ended]) -> list[Case]:
        """The selected failures of all-failed groups, with their evidence."""
        selected: list[Case] = []
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
                    seed=self.collector.seed,
                    iteration=iteration,
                )
                for trajectory in group.sampled
                if trajectory.valid
            ]
            selected += select(valid, self.settings.max_per_group, group_size=len(group.sampled))
        cases: list[Case] = []
        for case in selected:
            try:
                cases.append(with_evidence(case, self.collector.environment))
            except InfrastructureError as error:
                ended.append(Ended(reached=case, outcome=Outcome.REPLAY_MISMATCH, error=str(error)))
        return cases

    def _validate(self, cases: Sequence[Case], ended: list[Ended]) -> list[HarmfulStep]:
        """The harmful step of each case, once for each correction to be drawn."""
        harmful: list[HarmfulStep] = []
        for case, verdict in zip(cases, call_role(self.roles.validator.judge, cases), strict=True):
            if isinstance(verdict, Failure):
                ended.append(_failed(case, verdict, Outcome.NO_VERDICT))
            elif verdict.kind == "harmful" and verdict.step in range(len(case.turns)):
                harmful += [
                    HarmfulStep(case=case, verdict=verdict, step=verdict.step or 0, sample=sample)
                    for sample in range(self.settings.corrections)
                ]
            elif verdict.kind in WITHOUT_FAULT:
                ended.append(Ended(reached=case, outcome=WITHOUT_FAULT[verdict.kind], verdict=verdict))
            else:
                error = f"an invalid verdict: {verdict.kind}, step {verdict.step} of {len(case.turns)}"
                ended.append(Ended(reached=case, outcome=Outcome.ROLE_FAILED, error=error))
        return harmful

    def _correct(self, harmful: Sequence[HarmfulStep], corrector: Corrector, ended: list[Ended]) -> list[Corrected]:
        """The corrections that differ from the harmful turn and fit into a turn."""
        corrected: list[Corrected] = []
        most = self.collector.settings.max_tokens
        for step, correction in zip(harmful, call_role(corrector.correct, harmful), strict=True):
            if isinstance(correction, Failure):
                ended.append(_failed(step, correction, Outcome.NO_CORRECTION))
                continue
            attempt = Corrected(harmful=step, correction=correction)
            if not correction.action_ids:
                ended.append(_failed(step, EMPTY, Outcome.NO_CORRECTION))
            elif len(correction.action_ids) > most:
                error = f"the correction has {len(correction.action_ids)} tokens, rollout.max_tokens is {most}"
                ended.append(Ended(reached=attempt, outcome=Outcome.NO_CORRECTION, error=error))
            elif same_step(correction.message, step.turn.message):
                ended.append(Ended(reached=attempt, outcome=Outcome.UNCHANGED))
            else:
                corrected.append(attempt)
        return corrected

    def _verify(self, corrected: Sequence[Corrected], ended: list[Ended]) -> list[Checked]:
        """The corrections with their checks, rejected ones included."""
        checked: list[Checked] = []
        for attempt, checks in zip(corrected, call_role(self.roles.verifier.check, corrected), strict=True):
            if isinstance(checks, Failure):
                ended.append(_failed(attempt, checks, Outcome.NO_CHECK))
                continue
            result = Checked(corrected=attempt, checks=checks, rejection=rejection(checks))
            if result.rejection is Outcome.ROLE_UNAVAILABLE:
                ended.append(Ended(reached=result, outcome=result.rejection, error=lost_reason(checks)))
            else:
                checked.append(result)
        return checked

    def _pass_gate(self, scored: Sequence[Scored], ended: list[Ended]) -> tuple[list[Scored], list[Scored]]:
        """The corrections that pass the gate, and the dropped ones that are continued for the record."""
        gate = self.roles.gate
        passed: list[Scored] = []
        dropped: list[Scored] = []
        for attempt in scored:
            (passed if gate.passes(attempt.log_probs) else dropped).append(attempt)
        if gate.shadow:
            return passed, dropped
        ended += [Ended(reached=attempt, outcome=Outcome.TOO_PERPLEXING) for attempt in dropped]
        return passed, []

    def _merge(self, groups: Sequence[Group], ended: Sequence[Ended]) -> list[Group]:
        by_group: dict[int, list[Ended]] = {}
        for attempt in sorted(ended, key=lambda attempt: (attempt.case.trajectory.member, attempt.sample)):
            by_group.setdefault(attempt.case.group, []).append(attempt)
        return [
            merge_group(group, by_group[index], self.settings.merge) if index in by_group else group
            for index, group in enumerate(groups)
        ]


def _failed(reached: Case | HarmfulStep | Corrected, failure: Failure, unusable: Outcome) -> Ended:
    return Ended(reached=reached, outcome=FAILURES.get(failure.kind, unusable), error=failure.reason)


def same_step(first: Message, second: Message) -> bool:
    """Whether two turns act alike, whatever was thought before; then outcomes differ by luck alone."""
    return replace(first, thinking="") == replace(second, thinking="")
