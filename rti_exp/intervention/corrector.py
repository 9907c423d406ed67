"""The corrector: writes one full assistant turn that replaces the harmful one.

`corrector=none` has no object (None); then the method is GRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rti_exp.config.role_settings import RolePrompt, SamplingSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.engines.failed_requests import generate_each
from rti_exp.intervention.case import HarmfulStep
from rti_exp.intervention.prompts import is_closed, role_message, with_request
from rti_exp.intervention.transcripts import rendered
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Completion, Correction, Failure, FailureKind, Message

CUT_OFF = Failure(kind=FailureKind.UNUSABLE, reason="the correction was cut off before its end")
EMPTY = Failure(kind=FailureKind.UNUSABLE, reason="the correction is empty")


class Corrector(Protocol):
    """Writes corrections.

    `same_tokenizer` says whether `engine` can score the policy's ids, which `reweight.scorer=source` needs.
    """

    engine: Engine
    same_tokenizer: bool

    def correct(self, harmful: Sequence[HarmfulStep]) -> Sequence[Correction | Failure | None]:
        """A correction in the policy's ids for each harmful step, in order; a failure, or None, where there is none.

        A failure, None and an exception cost the attempts that they are for, never the run.

        Raises:
            EngineUnavailable: the engine stayed down.
        """
        ...


class SelfCorrector:
    """The policy under the correction prompt."""

    same_tokenizer = True

    def __init__(self, *, engine: Engine, renderer: Renderer, prompt: RolePrompt, settings: SamplingSettings) -> None:
        self.engine = engine
        self.renderer = renderer
        self.prompt = prompt
        self.settings = settings

    def correct(self, harmful: Sequence[HarmfulStep]) -> list[Correction | Failure]:
        prompts = [correction_prompt(step, self.prompt, self.renderer) for step in harmful]
        completions = _draw(self.engine, self.renderer, prompts, harmful, self.settings)
        return [
            completion
            if isinstance(completion, Failure)
            else _correction(prompt, completion.token_ids, self.renderer, source="self")
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


class TeacherCorrector:
    """Another model, with its own renderer.

    With the policy's tokenizer and chat format (`same_tokenizer`) it continues the policy's exact ids, and its ids are
    used directly. Otherwise the conversation is rendered for the teacher, and the text of its answer is encoded for the
    policy.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        policy_renderer: Renderer,
        same_tokenizer: bool,
        prompt: RolePrompt,
        settings: SamplingSettings,
    ) -> None:
        self.engine = engine
        self.renderer = policy_renderer if same_tokenizer else renderer
        self.policy_renderer = policy_renderer
        self.same_tokenizer = same_tokenizer
        self.prompt = prompt
        self.settings = settings

    def correct(self, harmful: Sequence[HarmfulStep]) -> list[Correction | Failure]:
        policy_prompts = [correction_prompt(step, self.prompt, self.policy_renderer) for step in harmful]
        prompts = policy_prompts if self.same_tokenizer else [self._teacher_prompt(step) for step in harmful]
        completions = _draw(self.engine, self.renderer, prompts, harmful, self.settings)
        return [
            self._for_policy(prompt, completion) for prompt, completion in zip(policy_prompts, completions, strict=True)
        ]

    def _teacher_prompt(self, harmful: HarmfulStep) -> tuple[int, ...]:
        """The correction prompt in the teacher's ids and chat format."""
        ids = rendered(harmful.case, harmful.step, harmful.turn.message.content, self.renderer)
        return with_request(ids, correction_request(harmful, self.prompt), self.renderer)

    def _for_policy(self, prompt_ids: tuple[int, ...], completion: Completion | Failure) -> Correction | Failure:
        if isinstance(completion, Failure):
            return completion
        ids = completion.token_ids
        if not self.same_tokenizer:
            # Checked in the teacher's ids, in which the policy's stop ids have another meaning.
            if not is_closed(ids, self.renderer):
                return CUT_OFF
            ids = self.policy_renderer.action_ids(self.renderer.message(ids).content)
        return _correction(prompt_ids, ids, self.policy_renderer, source="teacher", reencoded=not self.same_tokenizer)


def correction_request(harmful: HarmfulStep, prompt: RolePrompt) -> Message:
    """The request to rewrite the step, with the evidence and the validator's reason."""
    return role_message(prompt, evidence=harmful.case.evidence.text, reason=harmful.verdict.reason)


def correction_prompt(harmful: HarmfulStep, prompt: RolePrompt, renderer: Renderer) -> tuple[int, ...]:
    """History, harmful step and the role's request, in the policy's exact ids."""
    return with_request(harmful.case.ids_through(harmful.step), correction_request(harmful, prompt), renderer)


def _draw(
    engine: Engine,
    renderer: Renderer,
    prompts: Sequence[tuple[int, ...]],
    harmful: Sequence[HarmfulStep],
    settings: SamplingSettings,
) -> list[Completion | Failure]:
    if not harmful:
        return []
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens, stop_ids=renderer.stop_ids)
    requests = [
        GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=step.seed, log_probs=False)
        for prompt, step in zip(prompts, harmful, strict=True)
    ]
    return generate_each(engine, requests)


def _correction(
    prompt_ids: tuple[int, ...],
    action_ids: tuple[int, ...],
    renderer: Renderer,
    *,
    source: str,
    reencoded: bool = False,
) -> Correction | Failure:
    if not is_closed(action_ids, renderer):
        return CUT_OFF
    message = renderer.message(action_ids)
    if not message.content.strip() and not message.tool_calls:
        return EMPTY
    return Correction(
        prompt_ids=prompt_ids,
        action_ids=action_ids,
        text=message.content,
        message=message,
        source=source,
        reencoded=reencoded,
    )
