"""The validator: finds the first harmful step of a failed trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rti_exp.config.role_settings import JudgeSettings, RolePrompt
from rti_exp.engines.base import Engine
from rti_exp.intervention.answers import read_harmful
from rti_exp.intervention.case import Case
from rti_exp.intervention.prompts import role_message, with_request
from rti_exp.intervention.questions import Answer, Question, ask
from rti_exp.intervention.transcripts import rendered
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Failure, Verdict


@dataclass(slots=True)
class _Scan:
    """The progress on one case."""

    case: Case
    answers: list[str] = field(default_factory=list)
    result: Verdict | Failure | None = None


class Validator:
    """Judges the steps of every case in order, `settings.steps_per_call` of each in one engine call.

    It sees the task, the evidence, the history and the step, and answers strict JSON
    `{"harmful": bool, "reason"?: str}`. The scan of a case ends at its first harmful step. An answer that stays
    unreadable ends it too, without a verdict: a later harmful step may not be the first one.

    Args:
        same_tokenizer: False for another model that cannot read the policy's ids; it gets the text of the turns.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        prompt: RolePrompt,
        settings: JudgeSettings,
        same_tokenizer: bool = True,
    ) -> None:
        self.same_tokenizer = same_tokenizer
        self.engine = engine
        self.renderer = renderer
        self.prompt = prompt
        self.settings = settings

    def judge(self, cases: Sequence[Case]) -> list[Verdict | Failure]:
        """A verdict for each case; a failure where the engine lost a question.

        Raises:
            EngineUnavailable: the engine stayed down.
        """
        scans = [_Scan(case) for case in cases]
        first = 0
        while any(scan.result is None for scan in scans):
            self._wave([scan for scan in scans if scan.result is None], first)
            first += self.settings.steps_per_call
        return [scan.result for scan in scans if scan.result is not None]

    def _wave(self, scans: Sequence[_Scan], first: int) -> None:
        steps = [range(first, min(first + self.settings.steps_per_call, len(scan.case.turns))) for scan in scans]
        questions = [self._question(scan.case, step) for scan, wave in zip(scans, steps, strict=True) for step in wave]
        answers = iter(ask(questions, read_harmful, engine=self.engine, renderer=self.renderer, settings=self.settings))
        for scan, wave in zip(scans, steps, strict=True):
            _read(scan, [(step, next(answers)) for step in wave])

    def _question(self, case: Case, step: int) -> Question:
        request = role_message(self.prompt, evidence=case.evidence.text)
        if self.same_tokenizer:
            ids = case.ids_through(step)
        else:
            ids = rendered(case, step, case.turns[step].message.content, self.renderer)
        return Question(
            prompt_ids=with_request(ids, request, self.renderer),
            seed=lambda attempt: case.draw("validator", step, attempt),
        )


def _read(scan: _Scan, answers: Sequence[tuple[int, Answer[tuple[bool, str]]]]) -> None:
    for step, answer in answers:
        scan.answers.append(answer.text)
        if answer.failure is not None:
            scan.result = answer.failure
            return
        if answer.value is None:
            scan.result = Verdict(kind="no_verdict", answers=tuple(scan.answers))
            return
        harmful, reason = answer.value
        if harmful:
            scan.result = Verdict(kind="harmful", step=step, reason=reason, answers=tuple(scan.answers))
            return
    if len(scan.answers) == len(scan.case.turns):
        scan.result = Verdict(kind="no_fault", answers=tuple(scan.answers))
