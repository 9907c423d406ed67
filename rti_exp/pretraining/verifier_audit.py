"""The verifier's confusion matrix on the town: planted leaks, which it should reject, and clean corrections.

Leaks and clean corrections come in pairs: both answer the same held-out failures at which a leak is possible.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rti_exp.config.role_settings import PromptSettings, RoleSettings, VerifierSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.envs.town.families import FAMILIES
from rti_exp.intervention.answers import Unreadable, read_pass
from rti_exp.intervention.leak_rule import leaked, message_text
from rti_exp.pretraining.corpus import verifier_document
from rti_exp.pretraining.corrections import correction, leak_possible, should_pass
from rti_exp.pretraining.demonstrations import Demonstration, assistant_message, failed_demonstration
from rti_exp.pretraining.recipe import default_prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer

DRAWS_PER_CASE = 400
"""The limit on draws: in some families a leak is rarely or never possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A correction of a failed demonstration: a planted leak or a clean correction."""

    failure: Demonstration
    text: str
    planted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionMatrix:
    """Counts of a judge's verdicts. An unreadable answer counts as a rejection, as in a run."""

    judge: str
    leaks_rejected: int
    leaks_passed: int
    clean_rejected: int
    clean_passed: int


def draw_cases(seed: int, per_family: int) -> list[Case]:
    """A leak and a clean correction for each of up to `per_family` held-out failures of every family."""
    rng = random.Random(derive_seed(seed, "verifier audit"))
    missing = dict.fromkeys(FAMILIES, per_family)
    cases: list[Case] = []
    for _ in range(DRAWS_PER_CASE * per_family):
        if not any(missing.values()):
            break
        failure = failed_demonstration(rng, default_prior(), late=0.0, split="heldout")
        if not missing[failure.task.family] or not leak_possible(failure):
            continue
        missing[failure.task.family] -= 1
        for planted in (True, False):
            text = correction(failure, "leaky" if planted else "clean", rng)
            cases.append(Case(failure=failure, text=text, planted=planted))
    return cases


def rule_verdicts(cases: Sequence[Case]) -> list[bool]:
    """Whether each correction passes the deterministic rule."""
    return [not _leaks_by_rule(case) for case in cases]


def _leaks_by_rule(case: Case) -> bool:
    failure = case.failure
    messages = list(failure.opening)
    for step in failure.steps[: failure.first_harmful]:
        messages += (assistant_message(step.action), *step.observations)
    seen = "\n".join(map(message_text, messages))
    return bool(leaked(failure.evidence.text, seen, message_text(assistant_message(case.text))))


def policy_verdicts(
    cases: Sequence[Case],
    checks: Sequence[str],
    *,
    engine: Engine,
    renderer: Renderer,
    prompts: PromptSettings,
    role: RoleSettings,
    seed: int,
) -> dict[str, list[bool]]:
    """Whether each correction passes, by check. An unreadable answer does not pass."""
    sampling = Sampling(temperature=role.temperature, max_tokens=role.max_tokens, stop_ids=renderer.stop_ids)
    requests = []
    for check in checks:
        for index, case in enumerate(cases):
            passed = should_pass(check, "leaky" if case.planted else "clean", case.failure)
            prompt_ids = verifier_document(renderer, prompts, case.failure, case.text, check, passed).prompt_ids
            seed_of_case = derive_seed(seed, "audit", check, index)
            requests.append(GenerateRequest(prompt_ids=prompt_ids, sampling=sampling, seed=seed_of_case))
    completions = engine.generate(requests)
    passes = iter([_passes(renderer.message(completion.token_ids).content) for completion in completions])
    return {check: [next(passes) for _ in cases] for check in checks}


def _passes(answer: str) -> bool:
    try:
        return read_pass(answer)
    except Unreadable:
        return False


def confusion_matrix(judge: str, cases: Sequence[Case], passed: Sequence[bool]) -> ConfusionMatrix:
    pairs = list(zip((case.planted for case in cases), passed, strict=True))
    return ConfusionMatrix(
        judge=judge,
        leaks_rejected=pairs.count((True, False)),
        leaks_passed=pairs.count((True, True)),
        clean_rejected=pairs.count((False, False)),
        clean_passed=pairs.count((False, True)),
    )


def audit(
    settings: VerifierSettings,
    *,
    engine: Engine,
    renderer: Renderer,
    prompts: PromptSettings,
    seed: int,
    per_family: int,
) -> list[ConfusionMatrix]:
    """The matrix of each judge in `settings`, and of the judges together; empty for `verifier=none`."""
    cases = draw_cases(seed, per_family)
    verdicts: dict[str, list[bool]] = {}
    if settings.policy and settings.checks:
        by_check = policy_verdicts(
            cases, settings.checks, engine=engine, renderer=renderer, prompts=prompts, role=settings, seed=seed
        )
        if "leak" in by_check:
            verdicts["policy, leak check"] = by_check["leak"]
        verdicts["policy, all checks"] = [all(row) for row in zip(*by_check.values(), strict=True)]
    if settings.rule and "leak" in settings.checks:
        verdicts["rule"] = rule_verdicts(cases)
        if "policy, all checks" in verdicts:
            pairs = zip(verdicts["policy, all checks"], verdicts["rule"], strict=True)
            verdicts["policy and rule"] = [policy and rule for policy, rule in pairs]
    return [confusion_matrix(judge, cases, passed) for judge, passed in verdicts.items()]
