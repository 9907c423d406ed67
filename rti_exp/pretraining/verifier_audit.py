"""The verifier's confusion matrix on the town: planted leaks, which it should reject, and clean corrections.

Both are written for the same held-out failures at which a leak is possible, so that they come in pairs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rti_exp.config.check import PromptSettings
from rti_exp.config.settings import RoleSettings, VerifierSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.envs.town.families import FAMILIES
from rti_exp.intervention.answers import Unreadable, read_pass
from rti_exp.intervention.leak_rule import leaked, message_text
from rti_exp.pretraining.behaviour import Play, spoken
from rti_exp.pretraining.documents import correction, failed_play, leak_possible, passes, verifier_document
from rti_exp.pretraining.prior import Prior
from rti_exp.randomness import derive_seed
from rti_exp.rollout.renderer import Renderer

MOST_DRAWS = 400
"""Plays drawn for each one wanted: in some families a leak is seldom or never possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A correction of a failed play: a planted leak, or a clean one."""

    played: Play
    text: str
    planted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Counts of a judge's verdicts; an unreadable answer counts as a rejection, as it does in a run."""

    judge: str
    leaks_rejected: int
    leaks_passed: int
    clean_rejected: int
    clean_passed: int


def draw_cases(seed: int, plays: int) -> list[Case]:
    """A leak and a clean correction for each of up to `plays` held-out failures of every family."""
    rng = random.Random(derive_seed(seed, "verifier audit"))
    wanted = dict.fromkeys(FAMILIES, plays)
    cases: list[Case] = []
    for _ in range(MOST_DRAWS * plays):
        if not any(wanted.values()):
            break
        played = failed_play(rng, Prior(), late=0.0, split="heldout")
        step = played.first_harmful
        if step is None or not wanted[played.task.family] or not leak_possible(played, step):
            continue
        wanted[played.task.family] -= 1
        for planted in (True, False):
            text = correction(played, "leaky" if planted else "clean", rng)
            cases.append(Case(played=played, text=text, planted=planted))
    return cases


def rule_verdicts(cases: Sequence[Case]) -> list[bool]:
    """Whether the deterministic rule lets each correction pass."""
    verdicts = []
    for case in cases:
        step = case.played.first_harmful
        earlier = case.played.steps[:step]
        messages = [
            *case.played.opening,
            *(one for past in earlier for one in (spoken(past.action), *past.observations)),
        ]
        known = "\n".join(map(message_text, messages))
        verdicts.append(not leaked(case.played.evidence.text, known, message_text(spoken(case.text))))
    return verdicts


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
    """Whether each correction passes, by check; what cannot be read does not pass."""
    sampling = Sampling(temperature=role.temperature, max_tokens=role.max_tokens, stop_ids=renderer.stop_ids)
    requests = []
    for check in checks:
        for place, case in enumerate(cases):
            passed = passes(check, "leaky" if case.planted else "clean", case.played)
            document = verifier_document(renderer, prompts, case.played, case.text, check, passed)
            question = document.token_ids[: document.trained.index(True)]
            requests.append(
                GenerateRequest(prompt_ids=question, sampling=sampling, seed=derive_seed(seed, "audit", check, place))
            )
    answers = [_read(renderer.message(one.token_ids).content) for one in engine.generate(requests)]
    return {check: answers[place * len(cases) : (place + 1) * len(cases)] for place, check in enumerate(checks)}


def _read(answer: str) -> bool:
    try:
        return read_pass(answer)
    except Unreadable:
        return False


def matrix(judge: str, cases: Sequence[Case], passed: Sequence[bool]) -> Matrix:
    pairs = list(zip((case.planted for case in cases), passed, strict=True))
    return Matrix(
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
    role: RoleSettings,
    seed: int,
    plays: int,
) -> list[Matrix]:
    """The matrix of each judge that `settings` has, and of all together; none for `verifier=none`."""
    cases = draw_cases(seed, plays)
    found: list[Matrix] = []
    together = [True] * len(cases)
    if settings.policy:
        verdicts = policy_verdicts(
            cases, settings.checks, engine=engine, renderer=renderer, prompts=prompts, role=role, seed=seed
        )
        together = [all(row) for row in zip(*verdicts.values(), strict=True)]
        if "leak" in verdicts:
            found.append(matrix("policy, leak check", cases, verdicts["leak"]))
        found.append(matrix("policy, all checks", cases, together))
    if settings.rule and "leak" in settings.checks:
        rule = rule_verdicts(cases)
        found.append(matrix("rule", cases, rule))
        if settings.policy:
            both = [first and second for first, second in zip(together, rule, strict=True)]
            found.append(matrix("policy and rule", cases, both))
    return found
