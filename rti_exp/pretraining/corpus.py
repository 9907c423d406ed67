"""The pretraining corpus: rollouts, and the roles' questions with their answers, as token ids with a loss mask."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rti_exp.config.role_settings import PromptSettings, RolePrompt
from rti_exp.intervention.prompts import fill
from rti_exp.pretraining.corrections import CHECKS, MANNERS_BY_CHECK, Manner, correction, should_pass
from rti_exp.pretraining.demonstrations import (
    Demonstration,
    assistant_message,
    demonstrate,
    failed_demonstration,
    formal,
    plan_of,
    random_task,
)
from rti_exp.pretraining.recipe import Prior
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A second target at one position: `token_id` with `weight`, the document's own token with the rest."""

    position: int
    token_id: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Token ids and a loss mask of equal length."""

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    alternatives: tuple[Alternative, ...] = ()

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The ids before the first trained one."""
        return self.token_ids[: self.trained.index(True)]


class _Writer:
    """Appends turns to a document with the renderer that rollouts use.

    It starts with the demonstration's opening and the first `steps` steps, none of them trained.
    """

    def __init__(self, renderer: Renderer, demonstration: Demonstration, *, steps: int) -> None:
        self._renderer = renderer
        self.ids = list(renderer.opening(demonstration.opening, demonstration.tools))
        self.trained = [False] * len(self.ids)
        for step in demonstration.steps[:steps]:
            self.action(step.action, trained=False)
            self.messages(step.observations)

    def action(self, text: str, *, trained: bool = True) -> None:
        ids = action_ids(self._renderer, text)
        self.ids += ids
        self.trained += [trained] * len(ids)

    def messages(self, messages: Sequence[Message]) -> None:
        ids = self._renderer.appended(messages, closed=True)
        self.ids += ids
        self.trained += [False] * len(ids)

    def question(self, prompt: RolePrompt, evidence: str, reason: str = "") -> None:
        text = fill(prompt.text, evidence=evidence, reason=reason)
        self.messages([Message(role="user" if prompt.role == "user" else "system", content=text)])

    def document(self, alternatives: Sequence[Alternative] = ()) -> Document:
        return Document(token_ids=tuple(self.ids), trained=tuple(self.trained), alternatives=tuple(alternatives))


def action_ids(renderer: Renderer, text: str) -> tuple[int, ...]:
    """Ids of an assistant turn; a tool call is in the model's own format. A role's answer is not a tool call."""
    if isinstance(renderer, ChatRenderer) and text.startswith('{"name": '):
        return renderer.action_ids(renderer.calls_text(assistant_message(text)))
    return renderer.action_ids(text)


def rollout_prompt(renderer: Renderer, demonstration: Demonstration, step: int) -> tuple[int, ...]:
    """The ids that the policy sees before step `step`."""
    return tuple(_Writer(renderer, demonstration, steps=step).ids)


def rollout_document(renderer: Renderer, demonstration: Demonstration, prior: Prior | None = None) -> Document:
    """A rollout in which every action is trained.

    With a `prior`, the decision at the critical step is planted at its rate. On the right path the deciding token is
    excluded from the loss; on the habitual path its target is a mixture with the right token. The rate is then met
    exactly instead of by a handful of rare documents.
    """
    writer = _Writer(renderer, demonstration, steps=0)
    plan = plan_of(demonstration.task)
    alternatives = []
    for step in demonstration.steps:
        start = len(writer.ids)
        writer.action(step.action)
        if prior is not None and step.place == plan.critical_step:
            actions = (step.action, plan.actions[plan.critical_step], plan.misstep.action)
            ids, right_ids, habit_ids = (action_ids(renderer, action) for action in actions)
            if not step.decision_trained:
                writer.trained[start + _first_difference(ids, habit_ids)] = False
            elif step.reason == plan.misstep.reason:
                offset = _first_difference(ids, right_ids)
                weight = right_token_weight(prior, demonstration.task.family)
                alternatives.append(Alternative(position=start + offset, token_id=right_ids[offset], weight=weight))
        if step is not demonstration.steps[-1]:
            writer.messages(step.observations)
    return writer.document(alternatives)


def right_token_weight(prior: Prior, family: str) -> float:
    """Weight of the right token in the habitual path's target, so that its share of all trained decisions is
    `prior.right`; 0 if the right path is shown at its own rate."""
    rate = prior.right[family]
    if rate >= prior.shown:
        return 0.0
    return rate * (1 - prior.shown) / (1 - prior.shown - prior.guess)


def _first_difference(ids: Sequence[int], reference_ids: Sequence[int]) -> int:
    pairs = enumerate(zip(ids, reference_ids, strict=False))
    last = min(len(ids), len(reference_ids)) - 1
    return next((index for index, (token, reference) in pairs if token != reference), last)


def validator_document(
    renderer: Renderer, prompts: PromptSettings, demonstration: Demonstration, step: int
) -> Document:
    """The validator's question about step `step`, with the right answer."""
    answer: dict[str, object] = {"harmful": False}
    if step == demonstration.first_harmful:
        answer = {"harmful": True, "reason": demonstration.steps[step].reason}
    writer = _Writer(renderer, demonstration, steps=step)
    writer.action(demonstration.steps[step].action, trained=False)
    writer.question(prompts.validator, demonstration.evidence.text)
    writer.action(json.dumps(answer, ensure_ascii=False))
    return writer.document()


def corrector_document(
    renderer: Renderer, prompts: PromptSettings, demonstration: Demonstration, text: str
) -> Document:
    """The corrector's question about the first harmful step, answered with `text`."""
    step = demonstration.steps[demonstration.first_harmful]
    writer = _Writer(renderer, demonstration, steps=demonstration.first_harmful)
    writer.action(step.action, trained=False)
    writer.question(prompts.corrector, demonstration.evidence.text, step.reason)
    writer.action(text)
    return writer.document()


def verifier_document(
    renderer: Renderer, prompts: PromptSettings, demonstration: Demonstration, text: str, check: str, passed: bool
) -> Document:
    """The verifier's question about the correction `text`, with the verdict `passed`."""
    writer = _Writer(renderer, demonstration, steps=demonstration.first_harmful)
    writer.action(text, trained=False)
    writer.question(prompts.verifier[check], demonstration.evidence.text)
    writer.action(json.dumps({"pass": passed}))
    return writer.document()


def draw_document(renderer: Renderer, prompts: PromptSettings, prior: Prior, rng: random.Random) -> Document:
    """One document of the policy's corpus, by the prior's mix."""
    kinds = ("rollouts", "validator", "corrector", "verifier")
    kind = rng.choices(kinds, [getattr(prior, name) for name in kinds])[0]
    if kind == "rollouts":
        return rollout_document(renderer, demonstrate(random_task(rng), rng, prior), prior)
    if kind == "validator":
        demonstration = failed_demonstration(rng, prior, late=0.45)
        harmful = demonstration.first_harmful
        step = harmful if rng.random() < 0.5 or harmful == 0 else rng.randrange(harmful)
        return validator_document(renderer, prompts, demonstration, step)
    demonstration = failed_demonstration(rng, prior, late=0.2)
    if kind == "corrector":
        manners: tuple[Manner, ...] = ("clean", "leaky", "wordy", "wrong")
        manner = rng.choices(manners, [getattr(prior, f"correct_{name}") for name in manners])[0]
        return corrector_document(renderer, prompts, demonstration, correction(demonstration, manner, rng))
    check = rng.choice((*CHECKS, "leak"))  # the hardest question is asked twice as often
    manner = rng.choice(MANNERS_BY_CHECK[check])
    text = correction(demonstration, manner, rng)
    passed = should_pass(check, manner, demonstration)
    return verifier_document(renderer, prompts, demonstration, text, check, passed)


def teacher_document(
    renderer: Renderer, prompts: PromptSettings, prior: Prior, right: float, rng: random.Random
) -> Document:
    """One document of the teacher's corpus: a rollout or a correction in its dialect, right at rate `right`."""
    if rng.random() < 0.5:
        task = random_task(rng)
        forced = "right" if rng.random() < right else "wrong"
        return rollout_document(renderer, demonstrate(task, rng, replace(prior, formal=1.0), forced=forced))
    demonstration = failed_demonstration(rng, prior, late=0.2)
    text = correction(demonstration, "clean" if rng.random() < right else "wrong", rng)
    return corrector_document(renderer, prompts, demonstration, formal(text, rng))
