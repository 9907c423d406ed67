"""The verifier: does a correction meet the requirement, leak nothing, and sound like the policy?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from rti_exp.config.settings import CHECK_NAMES, RolePrompt, RoleSettings, SettingsError, VerifierSettings
from rti_exp.engines.base import Engine
from rti_exp.intervention.answers import read_pass
from rti_exp.intervention.ask import Answer, Question, ask
from rti_exp.intervention.case import Attempt
from rti_exp.intervention.leak_rule import known_text, leaked, message_text
from rti_exp.intervention.prompts import role_message, with_request
from rti_exp.intervention.rendering import rendered, whole_text
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Check, Outcome

CheckName = Literal["gold", "leak", "plausible"]

# If several checks say no, the first of these is the outcome.
OUTCOMES: dict[CheckName, Outcome] = {
    "leak": Outcome.LEAKED,
    "gold": Outcome.MISSES_REQUIREMENT,
    "plausible": Outcome.IMPLAUSIBLE,
}
REJECTED = (*OUTCOMES.values(), Outcome.NO_CHECK)


class Verifier:
    """Asks the policy for each check of `settings.checks`, and joins the leak rule.

    `settings.policy` and `settings.rule` switch the two judges. The rule is a judge of the `leak` check, so
    it is off where that check is. Every judge must pass. `verifier=none` is both off: it passes everything.

    Args:
        prompts: one for each of gold, leak and plausible; strict JSON `{"pass": bool}` is the answer.
        role: how the policy is sampled.
        same_tokenizer: False for another model that cannot read the policy's ids: it is told the text of the turns.

    Raises:
        SettingsError: a check to be asked has no prompt.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        prompts: Mapping[str, RolePrompt],
        settings: VerifierSettings,
        role: RoleSettings,
        same_tokenizer: bool = True,
    ) -> None:
        self.same_tokenizer = same_tokenizer
        self.engine = engine
        self.renderer = renderer
        self.prompts = prompts
        self.settings = settings
        self.role = role
        self.asked: tuple[CheckName, ...] = tuple(
            cast(CheckName, name) for name in CHECK_NAMES if settings.policy and name in settings.checks
        )
        missing = [name for name in self.asked if name not in prompts]
        if missing:
            raise SettingsError(f"verifier.prompts={sorted(prompts)!r}: must have a prompt for {missing}")
        self.rules = settings.rule and "leak" in settings.checks

    def check(self, attempts: Sequence[Attempt]) -> list[tuple[Check, ...]]:
        """The checks of each attempt's correction, in the order of `attempts`; all asked in one engine call.

        Raises:
            EngineUnavailable: the engine stayed down.
        """
        questions = [self._question(attempt, name) for attempt in attempts for name in self.asked]
        answers = iter(ask(questions, read_pass, engine=self.engine, renderer=self.renderer, settings=self.role))
        return [
            (*(_asked(name, next(answers)) for name in self.asked), *([leak_check(attempt)] if self.rules else []))
            for attempt in attempts
        ]

    def _question(self, attempt: Attempt, name: CheckName) -> Question:
        if self.same_tokenizer:
            ids = attempt.case.trajectory.prompt_ids(attempt.step) + attempt.written.action_ids
        else:
            ids = rendered(attempt.case, attempt.step, whole_text(attempt.written.message), self.renderer)
        request = role_message(self.prompts[name], evidence=attempt.case.evidence.text, reason=attempt.verdict.reason)
        return Question(
            prompt_ids=with_request(ids, request, self.renderer),
            seed=lambda number: attempt.case.draw("verifier", attempt.sample, name, number),
        )


def _asked(name: CheckName, answer: Answer[bool]) -> Check:
    return Check(name=name, judge="policy", passed=answer.value, answer=answer.text, lost=answer.lost)


def leak_check(attempt: Attempt) -> Check:
    """The deterministic rule; its answer names what leaked."""
    known = known_text(attempt.case.opening, attempt.case.tools, attempt.case.turns[: attempt.step])
    found = leaked(attempt.case.evidence.text, known, message_text(attempt.written.message))
    return Check(name="leak", judge="rule", passed=not found, answer=", ".join(sorted(found)))


def rejection(checks: Sequence[Check]) -> Outcome | None:
    """The outcome of an attempt with these checks, None if all passed.

    A check that said no comes first; one that was lost, or is without a readable answer (None), is not passed either.
    """
    failed = {check.name for check in checks if check.passed is False}
    said_no = next((outcome for name, outcome in OUTCOMES.items() if name in failed), None)
    if said_no is not None or all(check.passed for check in checks):
        return said_no
    return Outcome.ROLE_UNAVAILABLE if any(check.lost for check in checks) else Outcome.NO_CHECK
