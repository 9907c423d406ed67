"""Corrections of a failed demonstration, by manner: what a good, leaky, wordy or wrong corrector writes."""

from __future__ import annotations

import random
from typing import Literal

from rti_exp.envs.town.family import GIVE_UP
from rti_exp.pretraining.demonstrations import FORMAL_WORDS, Demonstration, formal, plan_of, random_task, wordy

Manner = Literal["clean", "leaky", "wordy", "formal", "habit", "wrong", "nonsense"]

CHECKS = ("gold", "leak", "plausible")
MANNERS_BY_CHECK: dict[str, tuple[Manner, ...]] = {
    "gold": ("clean", "clean", "leaky", "wordy", "formal", "wrong", "wrong", "nonsense"),
    "leak": ("clean", "clean", "leaky", "leaky", "leaky", "wordy", "formal", "habit"),
    "plausible": ("clean", "clean", "leaky", "wordy", "formal", "wrong", "nonsense", "nonsense", "nonsense"),
}
"""The manners that a check is trained on, repeated by weight."""


def correction(demonstration: Demonstration, manner: Manner, rng: random.Random) -> str:
    """The text that a corrector of this manner writes in place of the first harmful step."""
    plan = plan_of(demonstration.task)
    right = _right_action(demonstration)
    if manner == "leaky":
        return plan.shortcut if leak_possible(demonstration) else right
    if manner == "wordy":
        return wordy(right, rng)
    if manner == "formal":
        return formal(right, rng)
    if manner == "habit":
        return plan.misstep.action
    if manner == "wrong":
        guess = plan.guess_template.replace("{number}", str(rng.randint(10, 99)))
        return rng.choice([action for action in (GIVE_UP, guess, plan.misstep.action) if action != right])
    if manner == "nonsense":
        unrelated = plan_of(random_task(rng))
        return rng.choice([unrelated.actions[0], unrelated.shortcut, wordy(GIVE_UP, rng), "Done."])
    return right


def _right_action(demonstration: Demonstration) -> str:
    place = demonstration.steps[demonstration.first_harmful].place
    return plan_of(demonstration.task).actions[place]


def leak_possible(demonstration: Demonstration) -> bool:
    """Whether neither the request nor an observation shows the goal's value before the first harmful step."""
    earlier = demonstration.steps[: demonstration.first_harmful]
    messages = [*demonstration.opening, *(message for step in earlier for message in step.observations)]
    return demonstration.task.payload["goal"] not in " ".join(message.content for message in messages)


def should_pass(check: str, manner: Manner, demonstration: Demonstration) -> bool:
    """The verdict of a perfect verifier on a correction of this manner."""
    if check == "leak":
        return not (manner == "leaky" and leak_possible(demonstration))
    if check == "gold":
        return manner not in ("habit", "wrong", "nonsense")
    return manner != "nonsense"


def manner_of(demonstration: Demonstration, text: str) -> Manner:
    """The manner of a correction, by comparison with what each manner would write."""
    right = _right_action(demonstration)
    if text == right:
        return "clean"
    if text == plan_of(demonstration.task).shortcut and leak_possible(demonstration):
        return "leaky"
    if _without_note(text) == _without_note(right):
        words = text.replace('"', " ").replace(".", " ").split()
        return "formal" if any(word in FORMAL_WORDS for word in words) else "wordy"
    return "wrong"


def _without_note(text: str) -> str:
    if text.startswith("{"):
        return text.split('", "note"')[0].split('"note"')[0].removesuffix('"}}').removesuffix("}}")
    return text.split(",")[0].removesuffix(".")
