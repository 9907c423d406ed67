"""Pretraining documents: rollouts, and what the roles are asked and should answer, as ids with a loss mask."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rti_exp.config.check import PromptSettings
from rti_exp.config.settings import RolePrompt
from rti_exp.envs.town.family import GIVE_UP
from rti_exp.intervention.prompts import fill
from rti_exp.pretraining.behaviour import Play, Step, formal, plan_of, play, random_task, spoken, wordy
from rti_exp.pretraining.prior import Prior
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Message

Manner = Literal["clean", "leaky", "wordy", "formal", "habit", "wrong", "nonsense"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Token ids and which of them are trained, of equal length.

    `alternatives` are (position, token id, weight): there the target is a mixture, the other token with `weight`
    and the document's own with the rest.
    """

    token_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    alternatives: tuple[tuple[int, int, float], ...] = ()


class _Writer:
    """Appends pieces to a document, through the same renderer that rollouts use."""

    def __init__(self, renderer: Renderer, played: Play) -> None:
        self._renderer = renderer
        self._ids = list(renderer.opening(played.opening, played.tools))
        self._trained = [False] * len(self._ids)
        self._alternatives: list[tuple[int, int, float]] = []

    def action(
        self,
        text: str,
        *,
        trained: bool,
        untrained_at: int | None = None,
        alternative: tuple[int, int, float] | None = None,
    ) -> None:
        """`untrained_at` and the position of `alternative` count from the action's first token."""
        ids = action_ids(self._renderer, text)
        if alternative is not None:
            position, token_id, weight = alternative
            self._alternatives.append((len(self._ids) + position, token_id, weight))
        self._ids += ids
        self._trained += [trained and index != untrained_at for index in range(len(ids))]

    def messages(self, messages: Sequence[Message]) -> None:
        ids = self._renderer.appended(messages, closed=True)
        self._ids += ids
        self._trained += [False] * len(ids)

    def history(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.action(step.action, trained=False)
            self.messages(step.observations)

    def ask(self, prompt: RolePrompt, evidence: str, reason: str = "") -> None:
        text = fill(prompt.text, evidence=evidence, reason=reason)
        self.messages([Message(role="user" if prompt.role == "user" else "system", content=text)])

    def document(self) -> Document:
        return Document(
            token_ids=tuple(self._ids), trained=tuple(self._trained), alternatives=tuple(self._alternatives)
        )


def action_ids(renderer: Renderer, text: str) -> tuple[int, ...]:
    """Ids of an assistant turn; if it is a call (a role's answer is none), in the model's own spelling."""
    if isinstance(renderer, ChatRenderer) and text.startswith('{"name": '):
        return renderer.action_ids(renderer.calls_text(spoken(text)))
    return renderer.action_ids(text)


def correction(played: Play, manner: Manner, rng: random.Random) -> str:
    """What a corrector of that manner writes in place of the first harmful step of `played`."""
    step = played.first_harmful
    assert step is not None
    plan = plan_of(played.task)
    right = plan.actions[played.steps[step].place]
    if manner == "leaky":
        return plan.shortcut if leak_possible(played, step) else right
    if manner == "wordy":
        return wordy(right, rng)
    if manner == "formal":
        return formal(right, rng)
    if manner == "habit":
        return plan.misstep.action
    if manner == "wrong":
        guess = plan.guess_template.replace("{number}", str(rng.randint(10, 99)))
        others = [GIVE_UP, guess, plan.misstep.action]
        return rng.choice([action for action in others if action != right])
    if manner == "nonsense":
        other = plan_of(random_task(rng))
        return rng.choice([other.actions[0], other.shortcut, wordy(GIVE_UP, rng), "Done."])
    return right


def leak_possible(played: Play, step: int) -> bool:
    """Whether the goal's value has not been seen before `step`, in the request or in an observation."""
    seen = " ".join(
        [message.content for message in played.opening]
        + [message.content for earlier in played.steps[:step] for message in earlier.observations]
    )
    return played.task.payload["goal"] not in seen


def failed_play(rng: random.Random, prior: Prior, *, late: float, split: str = "all") -> Play:
    """A rollout that failed at a known step; a share of `late` fails after the critical step."""
    while True:
        task = random_task(rng, split=split)
        forced = "late" if rng.random() < late else ("wrong" if rng.random() < 0.7 else None)
        played = play(task, rng, prior, forced=forced)
        if played.reward == 0.0 and played.first_harmful is not None:
            return played


def rollout_document(renderer: Renderer, played: Play, prior: Prior | None = None) -> Document:
    """A whole rollout; every action is trained.

    With a `prior`, the decision at the critical step is planted at its rate: on the right path the deciding token
    is left out of the loss, on the habitual path its target is a mixture with the right one. The rate is then met
    exactly, and not by a handful of rare documents.
    """
    writer = _Writer(renderer, played)
    plan = plan_of(played.task)
    for step in played.steps:
        untrained_at, alternative = None, None
        if prior is not None and step.place == plan.critical_step:
            actions = (step.action, plan.actions[plan.critical_step], plan.misstep.action)
            ids, right_ids, habit_ids = (action_ids(renderer, action) for action in actions)
            if not step.decision_trained:
                untrained_at = _first_difference(ids, habit_ids)
            elif step.harmful and step.reason == plan.misstep.reason:
                position = _first_difference(ids, right_ids)
                alternative = position, right_ids[position], habit_weight(prior, played.task.family)
        writer.action(step.action, trained=True, untrained_at=untrained_at, alternative=alternative)
        if step is not played.steps[-1]:
            writer.messages(step.observations)
    return writer.document()


def habit_weight(prior: Prior, family: str) -> float:
    """Weight of the right token in the habitual path's target, so that its share of all trained decisions is
    `prior.right`; 0 where the right path is shown at its own rate."""
    rate = prior.right[family]
    if rate >= prior.shown:
        return 0.0
    return rate * (1 - prior.shown) / (1 - prior.shown - prior.guess)


def _first_difference(ids: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(ids, others, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(others)) - 1)


def validator_document(renderer: Renderer, prompts: PromptSettings, played: Play, step: int) -> Document:
    harmful = step == played.first_harmful
    writer = _Writer(renderer, played)
    writer.history(played.steps[:step])
    writer.action(played.steps[step].action, trained=False)
    writer.ask(prompts.validator, played.evidence.text)
    answer = {"harmful": True, "reason": played.steps[step].reason} if harmful else {"harmful": False}
    writer.action(json.dumps(answer), trained=True)
    return writer.document()


def corrector_document(renderer: Renderer, prompts: PromptSettings, played: Play, text: str) -> Document:
    step = played.first_harmful
    assert step is not None
    writer = _Writer(renderer, played)
    writer.history(played.steps[:step])
    writer.action(played.steps[step].action, trained=False)
    writer.ask(prompts.corrector, played.evidence.text, played.steps[step].reason)
    writer.action(text, trained=True)
    return writer.document()


def history_ids(renderer: Renderer, played: Play, step: int) -> tuple[int, ...]:
    """The rollout prompt of step `step`."""
    writer = _Writer(renderer, played)
    writer.history(played.steps[:step])
    return writer.document().token_ids


CHECKS = ("gold", "leak", "plausible")


def passes(check: str, manner: Manner, played: Play) -> bool:
    """What a perfect verifier says of a correction of that manner."""
    step = played.first_harmful
    assert step is not None
    if check == "leak":
        return not (manner == "leaky" and leak_possible(played, step))
    if check == "gold":
        return manner not in ("habit", "wrong", "nonsense")
    return manner != "nonsense"


def verifier_document(
    renderer: Renderer, prompts: PromptSettings, played: Play, text: str, check: str, passed: bool
) -> Document:
    step = played.first_harmful
    assert step is not None
    writer = _Writer(renderer, played)
    writer.history(played.steps[:step])
    writer.action(text, trained=False)
    writer.ask(prompts.verifier[check], played.evidence.text)
    writer.action(json.dumps({"pass": passed}), trained=True)
    return writer.document()


MANNERS_BY_CHECK: dict[str, tuple[Manner, ...]] = {
    "gold": ("clean", "clean", "leaky", "wordy", "formal", "wrong", "wrong", "nonsense"),
    "leak": ("clean", "clean", "leaky", "leaky", "leaky", "wordy", "formal", "habit"),
    "plausible": ("clean", "clean", "leaky", "wordy", "formal", "wrong", "nonsense", "nonsense", "nonsense"),
}


def draw_document(renderer: Renderer, prompts: PromptSettings, prior: Prior, rng: random.Random) -> Document:
    """One document by the prior's mix."""
    kinds = ("rollouts", "validator", "corrector", "verifier")
    kind = rng.choices(kinds, [getattr(prior, name) for name in kinds])[0]
    if kind == "rollouts":
        return rollout_document(renderer, play(random_task(rng), rng, prior), prior)
    if kind == "validator":
        played = failed_play(rng, prior, late=0.45)
        harmful = played.first_harmful
        assert harmful is not None
        step = harmful if rng.random() < 0.5 or harmful == 0 else rng.randrange(harmful)
        return validator_document(renderer, prompts, played, step)
    played = failed_play(rng, prior, late=0.2)
    if kind == "corrector":
        manners: tuple[Manner, ...] = ("clean", "leaky", "wordy", "wrong")
        manner = rng.choices(manners, [getattr(prior, f"correct_{name}") for name in manners])[0]
        return corrector_document(renderer, prompts, played, correction(played, manner, rng))
    check = rng.choice((*CHECKS, "leak"))  # the hardest question is asked twice as often
    manner = rng.choice(MANNERS_BY_CHECK[check])
    text = correction(played, manner, rng)
    return verifier_document(renderer, prompts, played, text, check, passes(check, manner, played))


def teacher_document(
    renderer: Renderer, prompts: PromptSettings, prior: Prior, right: float, rng: random.Random
) -> Document:
    """A document for the teacher, in its own dialect and right at rate `right`: a rollout or a correction."""
    if rng.random() < 0.5:
        played = play(
            random_task(rng), rng, replace(prior, formal=1.0), forced="right" if rng.random() < right else "wrong"
        )
        return rollout_document(renderer, played)
    played = failed_play(rng, prior, late=0.2)
    text = correction(played, "clean" if rng.random() < right else "wrong", rng)
    return corrector_document(renderer, prompts, played, formal(text, rng))
