"""The verifier: checks that a correction meets the requirement, leaks nothing, and sounds like the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rti_exp.config.role_settings import CheckName, RolePrompt, VerifierSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.base import Engine
from rti_exp.intervention.answers import read_pass
from rti_exp.intervention.case import Corrected
from rti_exp.intervention.leak_rule import known_text, leaked, message_text
from rti_exp.intervention.prompts import role_message, with_request
from rti_exp.intervention.questions import Answer, Question, ask
from rti_exp.intervention.transcripts import rendered, whole_text
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Check, Outcome

# If several checks fail, the first of these is the outcome.
OUTCOMES: dict[CheckName, Outcome] = {
    "leak": Outcome.LEAKED,
    "gold": Outcome.MISSES_REQUIREMENT,
    "plausible": Outcome.IMPLAUSIBLE,
}


class Verifier:
    """Asks the policy for each check of `settings.checks`, and joins the leak rule.

    `settings.policy` and `settings.rule` switch the two judges. The rule judges the `leak` check, so it is off if that
    check is off. Every judge must pass. `verifier=none` switches both off and passes everything.

    Args:
        prompts: One for each of gold, leak and plausible; the answer is strict JSON `{"pass": bool}`.
        same_tokenizer: False for another model that cannot read the policy's ids; it gets the text of the turns.

    Raises:
        SettingsError: an enabled check has no prompt.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        prompts: Mapping[str, RolePrompt],
        settings: VerifierSettings,
        same_tokenizer: bool = True,
    ) -> None:
        self.same_tokenizer = same_tokenizer
        self.engine = engine
        self.renderer = renderer
        self.prompts = prompts
        self.settings = settings
        self.asked: tuple[CheckName, ...] = tuple(settings.checks) if settings.policy else ()
        missing = [name for name in self.asked if name not in prompts]
        if missing:
            raise SettingsError(f"verifier.prompts={sorted(prompts)!r}: must have a prompt for {missing}")
        self.rules = settings.rule and "leak" in settings.checks

    def check(self, attempts: Sequence[Corrected]) -> list[tuple[Check, ...]]:
        """The checks of each correction, in the order of `attempts`; all are asked in one engine call.

        Raises:
            EngineUnavailable: the engine stayed down.
        """
        questions = [self._question(attempt, name) for attempt in attempts for name in self.asked]
        answers = iter(ask(questions, read_pass, engine=self.engine, renderer=self.renderer, settings=self.settings))
        return [
            (*(_asked(name, next(answers)) for name in self.asked), *([leak_check(attempt)] if self.rules else []))
            for attempt in attempts
        ]

    def _question(self, attempt: Corrected, name: CheckName) -> Question:
        if self.same_tokenizer:
            ids = attempt.prompt_ids + attempt.correction.action_ids
        else:
            ids = rendered(attempt.case, attempt.step, whole_text(attempt.correction.message), self.renderer)
        case, harmful = attempt.case, attempt.harmful
        request = role_message(self.prompts[name], evidence=case.evidence.text, reason=harmful.verdict.reason)
        return Question(
            prompt_ids=with_request(ids, request, self.renderer),
            seed=lambda number: case.draw("verifier", harmful.sample, name, number),
        )


def _asked(name: CheckName, answer: Answer[bool]) -> Check:
    return Check(name=name, judge="policy", passed=answer.value, answer=answer.text, failure=answer.failure)


def leak_check(attempt: Corrected) -> Check:
    """The deterministic rule; its answer names the leaked values."""
    known = known_text(attempt.case.opening, attempt.case.tools, attempt.case.turns[: attempt.step])
    leaks = leaked(attempt.case.evidence.text, known, message_text(attempt.correction.message))
    return Check(name="leak", judge="rule", passed=not leaks, answer=", ".join(sorted(leaks)))


def rejection(checks: Sequence[Check]) -> Outcome | None:
    """The outcome of an attempt with these checks; None if all passed.

    A failed check takes precedence over one without an answer, which does not pass either.
    """
    failed = {check.name for check in checks if check.passed is False}
    outcome = next((outcome for name, outcome in OUTCOMES.items() if name in failed), None)
    if outcome is not None or all(check.passed for check in checks):
        return outcome
    return Outcome.NO_CHECK if lost_reason(checks) is None else Outcome.ROLE_UNAVAILABLE


def lost_reason(checks: Sequence[Check]) -> str | None:
    """The answer text of the first check that the engine lost; None if it lost none."""
    return next((check.answer for check in checks if check.failure is not None), None)
