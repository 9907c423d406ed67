"""The roles of an intervention from their config nodes. The called code imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rti_exp.config.role_settings import CorrectorSettings, JudgeSettings, PromptSettings, VerifierSettings
from rti_exp.config.typed_config import Part
from rti_exp.experiment.parts import build_part, options_of
from rti_exp.experiment.policies import LoadedPolicy, PolicyLoader

if TYPE_CHECKING:
    import torch

    from rti_exp.intervention.corrector import Corrector
    from rti_exp.intervention.validator import Validator
    from rti_exp.intervention.verifier import Verifier


class RoleBuilder:
    """Builds validator, corrector and verifier. A model that plays several roles is loaded once.

    Args:
        policy: Plays every role that names no other model.
        loader: Loads the other models.
        device: Where they are put.
    """

    def __init__(
        self, policy: LoadedPolicy, loader: PolicyLoader, prompts: PromptSettings, device: torch.device
    ) -> None:
        self._policy = policy
        self._loader = loader
        self._prompts = prompts
        self._device = device
        self._judges: dict[str, LoadedPolicy] = {}

    def validator(self, part: Part) -> Validator:
        prompt = self._prompts.validator
        if not isinstance(part.options, JudgeSettings):
            return build_part(part, policy=self._policy, prompt=prompt, **options_of(part))
        judge = self._judge(getattr(part.options, "policy", None), "validator.policy")
        return build_part(part, **judge, prompt=prompt, settings=part.options)

    def corrector(self, part: Part) -> Corrector | None:
        """None for `corrector=none`."""
        if part.target is None:
            return None
        prompt, settings = self._prompts.corrector, part.options
        if not isinstance(settings, CorrectorSettings):
            return build_part(part, policy=self._policy, prompt=prompt, **options_of(part))
        if settings.path is None:
            engine, renderer = self._policy.engine, self._policy.renderer
            return build_part(part, engine=engine, renderer=renderer, prompt=prompt, settings=settings)
        teacher = self._loader.model(settings.path, "corrector.path", self._device)
        return build_part(
            part,
            engine=teacher.engine,
            renderer=teacher.renderer,
            policy_renderer=self._policy.renderer,
            same_tokenizer=teacher.has_tokenizer_of(self._policy),
            prompt=prompt,
            settings=settings,
        )

    def verifier(self, part: Part) -> Verifier:
        prompts = self._prompts.verifier
        if not isinstance(part.options, VerifierSettings):
            return build_part(part, policy=self._policy, prompts=prompts, **options_of(part))
        judge = self._judge(getattr(part.options, "path", None), "verifier.path")
        return build_part(part, **judge, prompts=prompts, settings=part.options)

    def _judge(self, path: str | None, key: str) -> dict[str, Any]:
        """The model that judges, as keyword arguments of the role's class; None is the policy itself."""
        if path is None:
            return {"engine": self._policy.engine, "renderer": self._policy.renderer}
        if path not in self._judges:
            self._judges[path] = self._loader.model(path, key, self._device)
        judge = self._judges[path]
        same_tokenizer = judge.has_tokenizer_of(self._policy)
        renderer = self._policy.renderer if same_tokenizer else judge.renderer
        return {"engine": judge.engine, "renderer": renderer, "same_tokenizer": same_tokenizer}
