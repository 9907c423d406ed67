"""A validator without a model: the first step that the environment answered with an error, else the last step."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.config.role_settings import RolePrompt
from rti_exp.experiment.policies import LoadedPolicy
from rti_exp.intervention.case import Case
from rti_exp.types import Verdict


class ErrorValidator:
    same_tokenizer = True

    def __init__(self, *, policy: LoadedPolicy, prompt: RolePrompt, marker: str = "error") -> None:
        self.engine = policy.engine  # nothing is asked, but every role names its engine
        self.marker = marker

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        return [Verdict(kind="harmful", step=self._step(case), reason="the call failed") for case in cases]

    def _step(self, case: Case) -> int:
        for step, turn in enumerate(case.turns):
            if any(self.marker in message.content.lower() for message in turn.observations):
                return step
        return len(case.turns) - 1
