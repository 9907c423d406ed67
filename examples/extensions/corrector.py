"""A corrector without a model: it replaces every harmful turn by the same text."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.config.role_settings import RolePrompt
from rti_exp.experiment.policies import LoadedPolicy
from rti_exp.intervention.case import HarmfulStep
from rti_exp.intervention.corrector import correction_prompt
from rti_exp.types import Correction


class TemplateCorrector:
    same_tokenizer = True

    def __init__(self, *, policy: LoadedPolicy, prompt: RolePrompt, text: str = "Done.") -> None:
        self.engine, self.renderer, self.prompt, self.text = policy.engine, policy.renderer, prompt, text

    def correct(self, harmful: Sequence[HarmfulStep]) -> list[Correction]:
        return [self._correction(step) for step in harmful]

    def _correction(self, step: HarmfulStep) -> Correction:
        action_ids = self.renderer.action_ids(self.text)
        return Correction(
            prompt_ids=correction_prompt(step, self.prompt, self.renderer),
            action_ids=action_ids,
            text=self.text,
            message=self.renderer.message(action_ids),
            source="template",
        )
