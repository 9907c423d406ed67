"""Agents of the pretraining corpus: they play the town through its real episodes, rightly and wrongly."""

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
from rti_exp.pretraining.prior import Prior
from rti_exp.types import Evidence, Message, Task, ToolCall

RAMBLING = [
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
FORMAL = [
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
    """One action of a played episode, in the place of the plan's action `place`.

    `decision_trained` False leaves the deciding token out of the loss: the token at which the right action
    parts from the habitual one.
    """

    action: str
    place: int
    observations: tuple[Message, ...]
    harmful: bool = False
    reason: str = ""
    decision_trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A finished episode of a scripted agent."""

    task: Task
    opening: tuple[Message, ...]
    steps: tuple[Step, ...]
    reward: float
    evidence: Evidence

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The schemas that the policy is shown in this episode."""
        return TownEpisode(self.task).tools

    @property
    def first_harmful(self) -> int | None:
        return next((index for index, step in enumerate(self.steps) if step.harmful), None)


def spoken(action: str) -> Message:
    """An action's text as the assistant message that the environment takes."""
    if not action.startswith("{"):
        return Message(role="assistant", content=action)
    call = json.loads(action)
    tool_call = ToolCall(name=call["name"], arguments=call["arguments"])
    return Message(role="assistant", content=action, tool_calls=(tool_call,))


def with_note(action: str, words: list[str]) -> str:
    """The same action with a note: as a tool's `note` argument, or before the full stop of a text."""
    note = " ".join(words)
    if action.startswith("{"):
        call = json.loads(action)
        return json.dumps({**call, "arguments": {**call["arguments"], "note": note}})
    return f"{action.removesuffix('.')}, {note}."


def wordy(action: str, rng: random.Random) -> str:
    return with_note(action, rng.choices(RAMBLING, k=rng.randint(5, 8)))


def formal(action: str, rng: random.Random) -> str:
    return with_note(action, rng.choices(FORMAL, k=rng.randint(5, 7)))


def plan_of(task: Task) -> Plan:
    return FAMILIES[task.family].plan(task.payload)


def random_task(rng: random.Random, *, split: str = "all", family: str | None = None) -> Task:
    return draw_task(family or rng.choice(list(FAMILIES)), split, rng.getrandbits(40), 0)


class _Player:
    """Plays one episode, step by step; `dress` puts each action into the agent's manner of speaking."""

    def __init__(self, task: Task, rng: random.Random, prior: Prior) -> None:
        self.task, self.rng, self.prior = task, rng, prior
        self.plan = plan_of(task)
        self.episode = TownEpisode(task)
        self.steps: list[Step] = []
        self.done = False
        self.reward = 0.0
        self.formal = rng.random() < prior.formal

    def act(self, action: str, place: int, *, harmful: str = "", decision_trained: bool = True) -> str:
        """Take `action`; returns what came back, as one text. `harmful` says why it is, if it is."""
        if self.formal:
            action = formal(action, self.rng)
        elif self.rng.random() < self.prior.wordy_step:
            action = wordy(action, self.rng)
        result = self.episode.step(spoken(action))
        self.steps.append(
            Step(
                action=action,
                place=place,
                observations=result.observations,
                harmful=bool(harmful),
                reason=harmful,
                decision_trained=decision_trained,
            )
        )
        self.done, self.reward = result.done, result.reward
        return " ".join(message.content for message in result.observations)

    def guess(self, place: int) -> None:
        """Call the terminal tool with a number that nobody has seen; report what comes of it, or give up."""
        number = self.other_number(self.plan.shortcut)
        seen = self.act(self.plan.guess_template.replace("{number}", number), place, harmful="guessed")
        ticket = re.search(r"ticket (\d+)", seen)
        self.act(f"Done: {ticket.group(1)}." if ticket else GIVE_UP, place + 1)

    def other_number(self, action: str) -> str:
        """A number that is not the one in `action`."""
        return self.rng.choice([number for number in NUMBERS if number not in action])


def play(task: Task, rng: random.Random, prior: Prior, *, forced: str | None = None) -> Play:
    """One rollout of the corpus' agent.

    Args:
        forced: "right" or "late" (right at the critical step; "late" fails after it) or "wrong" takes
            that path; None draws by the prior's rates.
    """
    player = _Player(task, rng, prior)
    plan, critical = player.plan, player.plan.critical_step
    right_rate = prior.right[task.family]
    shown = max(prior.shown, right_rate)
    path = forced or rng.choices(("right", "guess", "wrong"), (shown, prior.guess, 1 - shown - prior.guess))[0]
    end = "misreport" if rng.random() < 0.5 else "give_up"
    if forced != "late":
        end = rng.choices(("misreport", "give_up", ""), (prior.misreport, prior.give_up, 1))[0]
    give_up_at = (
        rng.randrange(len(plan.actions)) if forced != "late" else rng.randrange(critical + 1, len(plan.actions))
    )
    for place, action in enumerate(plan.actions):
        if end == "give_up" and place == give_up_at:
            player.act(GIVE_UP, place, harmful="gave up")
            break
        if place == critical and path == "guess":
            player.guess(place)
            break
        if place == critical and path == "wrong":
            player.act(plan.misstep.action, place, harmful=plan.misstep.reason)
            for later, text in enumerate(plan.misstep.then, start=place + 1):
                player.act(text, later)
            break
        if place == len(plan.actions) - 1 and end == "misreport":
            player.act(f"Done: {player.other_number(action)}.", place, harmful="wrong ticket")
            break
        player.act(action, place, decision_trained=place != critical or shown == right_rate)
        if place == 0 and rng.random() < prior.clumsy:
            player.act(action, place)
    return Play(
        task=task,
        opening=tuple(player.episode.messages),
        steps=tuple(player.steps),
        reward=player.reward,
        evidence=player.episode.evidence("rubric"),
    )
