"""Roles played by models behind OpenAI-compatible endpoints.

They are told the trajectory as text, and have instructions of their own: the policy's role prompts may be in a form
that only the policy has learned. Each request that is lost costs its own attempt (`Outcome.ROLE_UNAVAILABLE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from rti_exp.config.remote_settings import RemoteSettings, RemoteValidatorSettings, RemoteVerifierSettings
from rti_exp.config.settings import RolePrompt, SamplingSettings, VerifierSettings
from rti_exp.engines.base import Engine
from rti_exp.engines.fitting import Lost, TooLong
from rti_exp.engines.remote import ChatModel
from rti_exp.engines.remote.engine import RemoteEngine
from rti_exp.engines.remote.transcript import Transcript
from rti_exp.intervention.ask import Question
from rti_exp.intervention.case import Attempt, Case
from rti_exp.intervention.corrector import NoCorrection, Rewrite, TeacherCorrector
from rti_exp.intervention.prompts import role_message, with_request
from rti_exp.intervention.rendering import rendered, whole_text
from rti_exp.intervention.validator import Validator
from rti_exp.intervention.verifier import CheckName, Verifier
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Check, Completion, Correction


class HasRenderer(Protocol):
    """What a corrector needs of the policy; `rti_exp.experiment.policies.Player` has it."""

    @property
    def renderer(self) -> Renderer: ...


class RemoteCorrector(TeacherCorrector):
    """A remote teacher: the text of its answer is encoded for the policy.

    Args:
        prompt: the policy's correction prompt, under which the policy scores pi_cal.
        instruction: what the remote model is asked; {evidence} and {reason} are filled in.

    `changed_texts` counts corrections whose text is another one after encoding and decoding by the policy's
    tokenizer; what the policy's ids spell is what is recorded and executed.
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

    def _rendered(self, rewrite: Rewrite) -> tuple[int, ...]:
        case, step = rewrite.case, rewrite.step
        ids = rendered(case, step, case.turns[step].message.content, self.renderer)
        return with_request(ids, rewrite.request(self.instruction), self.renderer)

    def _for_policy(
        self, prompt_ids: tuple[int, ...], completion: Completion | TooLong | Lost
    ) -> Correction | NoCorrection:
        made = super()._for_policy(prompt_ids, completion)
        if isinstance(made, Correction) and isinstance(completion, Completion):
            self.changed_texts += made.text != self.renderer.message(completion.token_ids).content
        return made


class RemoteValidator(Validator):
    """The validator played by a remote model; `settings.instruction` is what it is asked.

    `engine`, `renderer` and `prompt` are the policy's and are not used.
    """

    def __init__(
        self, *, engine: Engine, renderer: Renderer, prompt: RolePrompt, settings: RemoteValidatorSettings
    ) -> None:
        super().__init__(
            engine=RemoteEngine(ChatModel(settings.remote, key="validator.remote")),
            renderer=Transcript(),
            prompt=settings.instruction,
            settings=settings,
        )

    def _question(self, case: Case, step: int) -> Question:
        ids = rendered(case, step, case.turns[step].message.content, self.renderer)
        request = role_message(self.prompt, evidence=case.evidence.text)
        return Question(
            prompt_ids=with_request(ids, request, self.renderer),
            seed=lambda number: case.draw("validator", step, number),
        )


class RemoteVerifier(Verifier):
    """The verifier played by a remote model; `role.instructions` are what it is asked, one for each check.

    `engine`, `renderer` and `prompts` are the policy's and are not used.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        prompts: Mapping[str, RolePrompt],
        settings: VerifierSettings,
        role: RemoteVerifierSettings,
    ) -> None:
        super().__init__(
            engine=RemoteEngine(ChatModel(role.remote, key="verifier.remote")),
            renderer=Transcript(),
            prompts=role.instructions,
            settings=settings,
            role=role,
        )

    def check(self, attempts: Sequence[Attempt]) -> list[tuple[Check, ...]]:
        return [tuple(_by_remote(one) for one in checks) for checks in super().check(attempts)]

    def _question(self, attempt: Attempt, name: CheckName) -> Question:
        case = attempt.case
        ids = rendered(case, attempt.step, whole_text(attempt.written.message), self.renderer)
        request = role_message(self.prompts[name], evidence=case.evidence.text, reason=attempt.verdict.reason)
        return Question(
            prompt_ids=with_request(ids, request, self.renderer),
            seed=lambda number: case.draw("verifier", attempt.sample, name, number),
        )


def _by_remote(check: Check) -> Check:
    return replace(check, judge="remote") if check.judge == "policy" else check
