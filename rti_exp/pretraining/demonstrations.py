"""Demonstrations: scripted agents play the town's real episodes, correctly and incorrectly."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.town.families import FAMILIES
from rti_exp.envs.town.family import GIVE_UP, Plan
from rti_exp.envs.town.names import NUMBERS
from rti_exp.envs.town.world import TownEpisode, draw_task
from rti_exp.pretraining.recipe import Prior
from rti_exp.types import Evidence, Message, Task, ToolCall

RAMBLING_WORDS = [
    "well",
    "okay",
    "maybe",
    "first",
    "then",
    "really",
    "just",
    "about",
    "some",
    "more",
    "here",
    "while",
    "perhaps",
    "checking",
    "things",
    "quickly",
    "again",
    "since",
    "everyone",
    "likes",
    "knowing",
    "whatever",
]
FORMAL_WORDS = [
    "pursuant",
    "hereby",
    "regarding",
    "aforementioned",
    "accordingly",
    "thereof",
    "respective",
    "enquiry",
    "herewith",
    "whereas",
    "kindly",
    "customary",
    "formal",
    "undersigned",
    "protocol",
    "diligence",
    "notwithstanding",
    "requisite",
    "procedure",
    "henceforth",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action of a demonstration.

    Attributes:
        place: The index of the plan's action that this action stands for.
        reason: Why the action is harmful; empty if it is not.
        decision_trained: Whether the deciding token is in the loss: the token at which the right action differs from
            the habitual one.
    """

    action: str
    place: int
    observations: tuple[Message, ...]
    reason: str = ""
    decision_trained: bool = True

    @property
    def harmful(self) -> bool:
        return bool(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A finished episode of a scripted agent."""

    task: Task
    opening: tuple[Message, ...]
    steps: tuple[Step, ...]
    reward: float
    evidence: Evidence

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The tool schemas that the policy sees in this episode."""
        return TownEpisode(self.task).tools

    @property
    def has_harmful_step(self) -> bool:
        return any(step.harmful for step in self.steps)

    @property
    def first_harmful(self) -> int:
        """The index of the first harmful step.

        Raises:
            ValueError: no step is harmful.
        """
        return [step.harmful for step in self.steps].index(True)


def assistant_message(action: str) -> Message:
    """The assistant message of an action's text: a tool call if it is JSON."""
    if not action.startswith("{"):
        return Message(role="assistant", content=action)
    call = json.loads(action)
    tool_call = ToolCall(name=call["name"], arguments=call["arguments"])
    return Message(role="assistant", content=action, tool_calls=(tool_call,))


def with_note(action: str, words: list[str]) -> str:
    """The action with a note: in a tool call as the `note` argument, in a text before the full stop."""
    note = " ".join(words)
    if action.startswith("{"):
        call = json.loads(action)
        return json.dumps({**call, "arguments": {**call["arguments"], "note": note}}, ensure_ascii=False)
    return f"{action.removesuffix('.')}, {note}."


def wordy(action: str, rng: random.Random) -> str:
    """The action with a rambling note."""
    return with_note(action, rng.choices(RAMBLING_WORDS, k=rng.randint(5, 8)))


def formal(action: str, rng: random.Random) -> str:
    """The action in the teacher's dialect."""
    return with_note(action, rng.choices(FORMAL_WORDS, k=rng.randint(5, 7)))


def plan_of(task: Task) -> Plan:
    return FAMILIES[task.family].plan(task.payload)


def random_task(rng: random.Random, *, split: str = "all", family: str | None = None) -> Task:
    return draw_task(family or rng.choice(list(FAMILIES)), split, rng.getrandbits(40), 0)


class _Demonstrator:
    """Plays one episode, step by step."""

    def __init__(self, task: Task, rng: random.Random, prior: Prior) -> None:
        self.task, self.rng, self.prior = task, rng, prior
        self.plan = plan_of(task)
        self.episode = TownEpisode(task)
        self.steps: list[Step] = []
        self.reward = 0.0
        self.formal = rng.random() < prior.formal

    def act(self, action: str, place: int, *, harmful: str = "", decision_trained: bool = True) -> str:
        """Take `action` and return the text of the observations. `harmful` is the reason why it is harmful."""
        if self.formal:
            action = formal(action, self.rng)
        elif self.rng.random() < self.prior.wordy_step:
            action = wordy(action, self.rng)
        result = self.episode.step(assistant_message(action))
        self.steps.append(
            Step(
                action=action,
                place=place,
                observations=result.observations,
                reason=harmful,
                decision_trained=decision_trained,
            )
        )
        self.reward = result.reward
        return " ".join(message.content for message in result.observations)

    def guess(self, place: int) -> None:
        """Call the terminal tool with an unseen number. Report the ticket if the call returns one, else give up."""
        number = self.another_number(self.plan.shortcut)
        answer = self.act(self.plan.guess_template.replace("{number}", number), place, harmful="guessed")
        ticket = re.search(r"ticket (\d+)", answer)
        self.act(f"Done: {ticket.group(1)}." if ticket else GIVE_UP, place + 1)

    def another_number(self, action: str) -> str:
        """A number that is not in `action`."""
        return self.rng.choice([number for number in NUMBERS if number not in action])

    def follow_the_habit(self, place: int) -> None:
        misstep = self.plan.misstep
        for later, action in enumerate((misstep.action, *misstep.then), start=place):
            self.act(action, later, harmful=misstep.reason if later == place else "")

    def play(self, path: str, ending: str, give_up_at: int, *, decision_trained: bool) -> None:
        """Follow the plan, except for what `path` does at the critical step and `ending` at the end."""
        critical, last = self.plan.critical_step, len(self.plan.actions) - 1
        for place, action in enumerate(self.plan.actions):
            if ending == "give_up" and place == give_up_at:
                self.act(GIVE_UP, place, harmful="gave up")
                return
            if place == critical and path == "guess":
                self.guess(place)
                return
            if place == critical and path == "wrong":
                self.follow_the_habit(place)
                return
            if place == last and ending == "misreport":
                self.act(f"Done: {self.another_number(action)}.", place, harmful="wrong ticket")
                return
            self.act(action, place, decision_trained=place != critical or decision_trained)
            if place == 0 and self.rng.random() < self.prior.clumsy:
                self.act(action, place)


def demonstrate(task: Task, rng: random.Random, prior: Prior, *, forced: str | None = None) -> Demonstration:
    """One episode of the scripted agent.

    Args:
        forced: "right" takes the right action at the critical step, "wrong" the habitual one, "late" the right one and
            fails after it; None draws the path by the prior's rates.
    """
    demonstrator = _Demonstrator(task, rng, prior)
    plan = demonstrator.plan
    shown = max(prior.shown, prior.right[task.family])
    path = forced or rng.choices(("right", "guess", "wrong"), (shown, prior.guess, 1 - shown - prior.guess))[0]
    ending = "misreport" if rng.random() < 0.5 else "give_up"
    if forced != "late":
        ending = rng.choices(("misreport", "give_up", ""), (prior.misreport, prior.give_up, 1))[0]
    give_up_at = rng.randrange(plan.critical_step + 1 if forced == "late" else 0, len(plan.actions))
    demonstrator.play(path, ending, give_up_at, decision_trained=shown == prior.right[task.family])
    return Demonstration(
        task=task,
        opening=tuple(demonstrator.episode.messages),
        steps=tuple(demonstrator.steps),
        reward=demonstrator.reward,
        evidence=demonstrator.episode.evidence("rubric"),
    )


def failed_demonstration(rng: random.Random, prior: Prior, *, late: float, split: str = "all") -> Demonstration:
    """An episode that failed at a harmful step; the share `late` fails after the critical step."""
    while True:
        task = random_task(rng, split=split)
        forced = "late" if rng.random() < late else ("wrong" if rng.random() < 0.7 else None)
        demonstration = demonstrate(task, rng, prior, forced=forced)
        if demonstration.reward == 0.0 and demonstration.has_harmful_step:
            return demonstration
