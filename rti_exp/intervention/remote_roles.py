"""Roles played by models behind OpenAI-compatible endpoints.

They get the trajectory as text, with separate instructions: the policy's role prompts may have a form that only the
policy has learned. Each lost request costs its own attempt (`Outcome.ROLE_UNAVAILABLE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from rti_exp.config.remote_settings import RemoteSettings, RemoteValidatorSettings, RemoteVerifierSettings
from rti_exp.config.role_settings import RolePrompt, SamplingSettings
from rti_exp.engines.base import Engine
from rti_exp.engines.remote import ChatModel
from rti_exp.engines.remote.engine import RemoteEngine
from rti_exp.engines.remote.transcript import Transcript
from rti_exp.intervention.case import Corrected, HarmfulStep
from rti_exp.intervention.corrector import TeacherCorrector, correction_request
from rti_exp.intervention.prompts import with_request
from rti_exp.intervention.transcripts import rendered
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import Verifier
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Check, Completion, Correction, Failure


class HasRenderer(Protocol):
    """The part of the policy that a corrector uses; see `rti_exp.experiment.policies.LoadedPolicy`."""

    @property
    def renderer(self) -> Renderer: ...


class RemoteCorrector(TeacherCorrector):
    """A remote teacher: the text of its answer is encoded for the policy.

    Args:
        prompt: The policy's correction prompt, under which the policy scores pi_cal.
        instruction: The request to the remote model; {evidence} and {reason} are filled in.

    `changed_texts` counts corrections whose text changes when the policy's tokenizer encodes and decodes it; the
    decoded text is recorded and executed.
    """

    def __init__(
        self,
        *,
        policy: HasRenderer,
        prompt: RolePrompt,
        remote: RemoteSettings,
        instruction: RolePrompt,
        temperature: float,
        max_tokens: int,
    ) -> None:
        super().__init__(
            engine=RemoteEngine(ChatModel(remote, key="corrector.remote")),
            renderer=Transcript(),
            policy_renderer=policy.renderer,
            same_tokenizer=False,
            prompt=prompt,
            settings=SamplingSettings(temperature=temperature, max_tokens=max_tokens),
        )
        self.instruction = instruction
        self.changed_texts = 0

    def _teacher_prompt(self, harmful: HarmfulStep) -> tuple[int, ...]:
        ids = rendered(harmful.case, harmful.step, harmful.turn.message.content, self.renderer)
        return with_request(ids, correction_request(harmful, self.instruction), self.renderer)

    def _for_policy(self, prompt_ids: tuple[int, ...], completion: Completion | Failure) -> Correction | Failure:
        correction = super()._for_policy(prompt_ids, completion)
        if isinstance(correction, Correction) and isinstance(completion, Completion):
            self.changed_texts += correction.text != self.renderer.message(completion.token_ids).content
        return correction


class RemoteValidator(Validator):
    """The validator played by a remote model, with the request `settings.instruction`.

    The policy's `engine`, `renderer` and `prompt` are not used.
    """

    def __init__(
        self, *, engine: Engine, renderer: Renderer, prompt: RolePrompt, settings: RemoteValidatorSettings
    ) -> None:
        super().__init__(
            engine=RemoteEngine(ChatModel(settings.remote, key="validator.remote")),
            renderer=Transcript(),
            prompt=settings.instruction,
            settings=settings,
            same_tokenizer=False,
        )


class RemoteVerifier(Verifier):
    """The verifier played by a remote model, with the requests `settings.instructions`, one for each check.

    The policy's `engine`, `renderer` and `prompts` are not used.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        prompts: Mapping[str, RolePrompt],
        settings: RemoteVerifierSettings,
    ) -> None:
        super().__init__(
            engine=RemoteEngine(ChatModel(settings.remote, key="verifier.remote")),
            renderer=Transcript(),
            prompts=settings.instructions,
            settings=settings,
            same_tokenizer=False,
        )

    def check(self, attempts: Sequence[Corrected]) -> list[tuple[Check, ...]]:
        return [tuple(_by_remote(check) for check in checks) for checks in super().check(attempts)]


def _by_remote(check: Check) -> Check:
    return replace(check, judge="remote") if check.judge == "policy" else check
