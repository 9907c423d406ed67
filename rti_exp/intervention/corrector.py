"""The corrector: one full assistant turn in place of the harmful one.

`corrector=none` is no object at all (None): then the method is GRPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rti_exp.config.settings import RolePrompt, SamplingSettings
from rti_exp.engines.base import Engine, GenerateRequest, Sampling
from rti_exp.engines.fitting import Lost, TooLong, generate_fitting
from rti_exp.intervention.case import Case
from rti_exp.intervention.prompts import is_closed, role_message, with_request
from rti_exp.intervention.rendering import rendered
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Completion, Correction, Message, Verdict

CUT_OFF = "the correction was cut off before its end"
EMPTY = "the correction is empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One draw to be made: sample number `sample` of a harmful case."""

    case: Case
    step: int
    reason: str
    sample: int

    @property
    def seed(self) -> int:
        return self.case.draw("corrector", self.sample)

    @classmethod
    def of(cls, case: Case, verdict: Verdict, sample: int) -> Rewrite:
        """
        Raises:
            ValueError: the verdict names no step.
        """
        if verdict.step is None:
            raise ValueError(f"no harmful step in {case.task.id}/{case.trajectory.member}")
        return cls(case=case, step=verdict.step, reason=verdict.reason, sample=sample)

    def request(self, prompt: RolePrompt) -> Message:
        return role_message(prompt, evidence=self.case.evidence.text, reason=self.reason)


@dataclass(frozen=True, slots=True)
class NoCorrection:
    """Nothing usable was written; `unavailable` if that is the engine's fault."""

    why: str
    unavailable: bool = False


class Corrector(Protocol):
    """Writes corrections.

    `same_tokenizer` says whether `engine` can score the policy's ids, which `reweight.scorer=source` needs.
    """

    engine: Engine
    same_tokenizer: bool

    def correct(self, rewrites: Sequence[Rewrite]) -> list[Correction | NoCorrection]:
        """Corrections in the policy's ids, in the order of `rewrites`; none if empty, cut off, or not to be asked for
        because the model has no positions for the prompt.

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

    def correct(self, rewrites: Sequence[Rewrite]) -> list[Correction | NoCorrection]:
        prompts = [correction_prompt(rewrite, self.prompt, self.renderer) for rewrite in rewrites]
        completions = _draw(self.engine, self.renderer, prompts, rewrites, self.settings)
        return [
            _nothing(completion)
            if isinstance(completion, TooLong | Lost)
            else _correction(prompt, completion.token_ids, self.renderer, source="self")
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


class TeacherCorrector:
    """Another model, with a renderer of its own.

    With the policy's tokenizer and chat format (`same_tokenizer`) it continues the policy's exact ids, and
    its ids are taken as they are. Otherwise the conversation is rendered for the teacher, and the text of
    its answer encoded for the policy.
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

    def correct(self, rewrites: Sequence[Rewrite]) -> list[Correction | NoCorrection]:
        policy_prompts = [correction_prompt(rewrite, self.prompt, self.policy_renderer) for rewrite in rewrites]
        prompts = policy_prompts if self.same_tokenizer else [self._rendered(rewrite) for rewrite in rewrites]
        completions = _draw(self.engine, self.renderer, prompts, rewrites, self.settings)
        return [
            self._for_policy(prompt, completion) for prompt, completion in zip(policy_prompts, completions, strict=True)
        ]

    def _rendered(self, rewrite: Rewrite) -> tuple[int, ...]:
        """The correction prompt in the teacher's ids and chat format."""
        case, step = rewrite.case, rewrite.step
        ids = rendered(case, step, case.turns[step].message.content, self.renderer)
        return with_request(ids, rewrite.request(self.prompt), self.renderer)

    def _for_policy(
        self, prompt_ids: tuple[int, ...], completion: Completion | TooLong | Lost
    ) -> Correction | NoCorrection:
        if isinstance(completion, TooLong | Lost):
            return _nothing(completion)
        ids = completion.token_ids
        if not self.same_tokenizer:
            # Looked at here, in the teacher's ids: the policy's stop ids mean something else there.
            if not is_closed(ids, self.renderer):
                return NoCorrection(CUT_OFF)
            ids = self.policy_renderer.action_ids(self.renderer.message(ids).content)
        return _correction(prompt_ids, ids, self.policy_renderer, source="teacher", reencoded=not self.same_tokenizer)


def correction_prompt(rewrite: Rewrite, prompt: RolePrompt, renderer: Renderer) -> tuple[int, ...]:
    """History, harmful step and the role's request, in the policy's exact ids."""
    return with_request(rewrite.case.ids_through(rewrite.step), rewrite.request(prompt), renderer)


def _nothing(completion: TooLong | Lost) -> NoCorrection:
    return NoCorrection(completion.why, unavailable=isinstance(completion, Lost))


def _draw(
    engine: Engine,
    renderer: Renderer,
    prompts: Sequence[tuple[int, ...]],
    rewrites: Sequence[Rewrite],
    settings: SamplingSettings,
) -> list[Completion | TooLong | Lost]:
    if not rewrites:
        return []
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens, stop_ids=renderer.stop_ids)
    requests = [
        GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=rewrite.seed, log_probs=False)
        for prompt, rewrite in zip(prompts, rewrites, strict=True)
    ]
    return generate_fitting(engine, requests)


def _correction(
    prompt_ids: tuple[int, ...],
    action_ids: tuple[int, ...],
    renderer: Renderer,
    *,
    source: str,
    reencoded: bool = False,
) -> Correction | NoCorrection:
    if not is_closed(action_ids, renderer):
        return NoCorrection(CUT_OFF)
    message = renderer.message(action_ids)
    if not message.content.strip() and not message.tool_calls:
        return NoCorrection(EMPTY)
    return Correction(
        prompt_ids=prompt_ids,
        action_ids=action_ids,
        text=message.content,
        message=message,
        source=source,
        reencoded=reencoded,
    )
