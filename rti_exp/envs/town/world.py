"""The town as an `Environment`: tasks from a seed, episodes over a plain state, evidence, hash and fork."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.config.fields import Count
from rti_exp.envs.base import StepResult
from rti_exp.envs.town.families import FAMILIES
from rti_exp.envs.town.family import Family, State, Tool, ToolError
from rti_exp.envs.town.names import names_of
from rti_exp.randomness import derive_seed
from rti_exp.types import Evidence, EvidenceLevel, Message, Task, ToolCall

SYSTEM = (
    "You help the people of a small town. In each turn either call one tool, with a single JSON object "
    '{"name": ..., "arguments": {...}} and nothing else, or write to the user. '
    "When everything is done, write: Done: TICKET."
)
SPLITS = ("train", "heldout")


class Town:
    """Tasks of the chosen families, drawn from `seed`; the two splits share no name and no number.

    Args:
        seed: which town; each seed draws different tasks.
        train_tasks: training tasks per family. A few make a small, repeated set; with many, most tasks are new.
        heldout_tasks: held-out tasks per family.
        families: names out of `FAMILIES`; None is all of them.
        max_turns: assistant turns an episode may take.
    """

    def __init__(
        self,
        *,
        seed: int,
        train_tasks: Count,
        heldout_tasks: Count,
        families: Sequence[str] | None,
        max_turns: Count,
    ) -> None:
        names = list(FAMILIES) if families is None else list(families)
        unknown = [name for name in names if name not in FAMILIES]
        if unknown or not names:
            raise ValueError(f"env.families={names}: must be a non-empty list out of {list(FAMILIES)}")
        self.seed = seed
        self.max_turns = max_turns
        self._families = names
        self._counts = {"train": train_tasks, "heldout": heldout_tasks}

    def tasks(self, split: str) -> list[Task]:
        if split not in SPLITS:
            raise ValueError(f'no split {split!r} in the town: use "train" or "heldout"')
        return [
            draw_task(family, split, self.seed, index)
            for index in range(self._counts[split])
            for family in self._families
        ]

    def start(self, task: Task) -> TownEpisode:
        return TownEpisode(task)


def draw_task(family: str, split: str, seed: int, index: int) -> Task:
    """Task number `index` of a family; a pure function of its arguments. Split "all" is for pretraining."""
    rng = random.Random(derive_seed(seed, "town", family, split, index))
    payload = FAMILIES[family].draw(rng, names_of(split))
    return Task(id=f"{family}/{split}/{seed}/{index}", family=family, split=split, payload=payload)


class TownEpisode:
    """One attempt. The state is a plain dict; every change to it goes through a tool or the user."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._family: Family = FAMILIES[task.family]
        self._state: State = {"turns": 0}
        self._answer: str | None = None

    @property
    def messages(self) -> list[Message]:
        return [
            Message(role="system", content=SYSTEM),
            Message(role="user", content=self._family.request(self._task.payload)),
        ]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        return [schema(tool) for tool in self._family.tools]

    def step(self, message: Message) -> StepResult:
        if self._answer is not None:
            raise RuntimeError(f"the episode of {self._task.id} is over; start a new one")
        self._state["turns"] += 1
        if message.malformed is not None:
            return self._tool_answer(f"Error: {message.malformed}")
        if len(message.tool_calls) > 1:
            return self._tool_answer("Error: one tool call a turn.")
        if message.tool_calls:
            return self._tool_answer(self._call(message.tool_calls[0]))
        reply = self._family.user_reply(self._task.payload, self._state, message.content)
        if reply is not None:
            return StepResult(observations=(Message(role="user", content=reply),), done=False)
        self._answer = message.content
        parts = {name: float(met) for name, _, met in self._conditions()}
        reward = float(all(parts.values()))
        return StepResult(observations=(), done=True, reward=reward, reward_parts=parts)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        if level == "none":
            return Evidence(level=level)
        conditions = self._conditions()
        return Evidence(
            level=level,
            rubric=tuple(text for _, text, _ in conditions),
            failed=tuple(name for name, _, met in conditions if not met),
            reference=" ".join(self._family.plan(self._task.payload).actions) if level == "reference" else None,
        )

    def state_hash(self) -> str:
        state = {"task": self._task.id, "state": self._state, "answer": self._answer}
        return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()

    def fork(self, messages: Sequence[Message]) -> TownEpisode:
        episode = TownEpisode(self._task)
        for message in messages:
            episode.step(message)
        return episode

    def _conditions(self) -> list[tuple[str, str, bool]]:
        """(name, text with the goal's value, met) of each condition of success."""
        payload = self._task.payload
        name, text = self._family.goal(payload)
        settled = self._state.get("settled") == payload["goal"]
        reported = _numbers(self._answer or "") == [payload["confirmation"]]
        return [(name, text, settled), ("report", f"report {payload['confirmation']}", settled and reported)]

    def _tool_answer(self, text: str) -> StepResult:
        return StepResult(observations=(Message(role="tool", content=text),), done=False)

    def _call(self, tool_call: ToolCall) -> str:
        tools = {tool.name: tool for tool in self._family.tools}
        tool = tools.get(tool_call.name)
        if tool is None:
            return "Error: no such tool."
        arguments = tool_call.arguments
        missing = [name for name in tool.parameters if name not in arguments]
        unknown = [name for name in arguments if name not in (*tool.parameters, "note")]
        if missing or unknown:
            return "Error: wrong arguments."
        if not all(isinstance(value, str) for value in arguments.values()):
            return "Error: arguments must be strings."
        try:
            return tool.run(self._task.payload, self._state, arguments)
        except ToolError as error:
            return f"Error: {error}."


def schema(tool: Tool) -> dict[str, Any]:
    """The tool as a JSON-schema function, as chat templates expect it."""
    properties = {name: {"type": "string"} for name in (*tool.parameters, "note")}
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": {"type": "object", "properties": properties, "required": list(tool.parameters)},
    }


def _numbers(text: str) -> list[str]:
    """The numbers in a text, in order: runs of ASCII digits."""
    digits = "".join(character if character.isascii() and character.isdigit() else " " for character in text)
    return digits.split()
