"""One game played by assistant turns: each is a command."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.model_text import split_thinking
from rti_exp.envs.base import StepResult
from rti_exp.envs.textworld.games import Game, GameSpec, View, solution
from rti_exp.types import Evidence, EvidenceLevel, Message, Task

SYSTEM = "You play a text game. In each turn write one command and nothing else."


class TextWorldEpisode:
    """One attempt at one game; reward 1 for winning it; the game's score is a part of the reward."""

    def __init__(self, task: Task, *, show_commands: bool, seconds: float) -> None:
        self._task = task
        self._show_commands = show_commands
        self._seconds = seconds
        self._spec = GameSpec(**task.payload)
        self._game = Game(self._spec, seconds)
        self._opening = f"{self._game.description}\n{self._text(self._game.view)}"
        self._turns = 0
        self._scored: list[str] = []
        self._over = False

    @property
    def messages(self) -> list[Message]:
        return [Message(role="system", content=SYSTEM), Message(role="user", content=self._opening)]

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        return []

    def _text(self, view: View) -> str:
        if not self._show_commands or not view.commands:
            return view.observation
        return f"{view.observation}\nCommands: {'; '.join(view.commands)}"

    def step(self, message: Message) -> StepResult:
        if self._over:
            raise RuntimeError(f"the episode of {self._task.id} is over; start a new one")
        self._turns += 1
        if message.tool_calls or message.malformed is not None:
            return self._answer("There are no tools here: write one command as plain text.")
        command = command_of(message.content)
        if not command:
            return self._answer("Write one command.")
        before = self._game.view.score
        view = self._game.step(command)
        if view.score > before:
            self._scored.append(self._game.commands[-1])
        if view.won or view.lost:
            self._over = True
            won = float(view.won)
            return StepResult(observations=(), done=True, reward=won, reward_parts={"score": view.score, "won": won})
        return self._answer(self._text(view))

    @staticmethod
    def _answer(text: str) -> StepResult:
        return StepResult(observations=(Message(role="user", content=text),), done=False)

    def evidence(self, level: EvidenceLevel) -> Evidence:
        """The conditions are the commands of the game's solution that raise its score.

        A condition is met when the command raised the score here too. Which commands those are is the answer: below
        level "reference" they have numbers only, but for those that the policy gave itself.
        """
        if level == "none":
            return Evidence(level=level)
        game_solution = solution(self._spec, self._seconds)
        done, many = Counter(self._scored), len(game_solution.milestones)
        rubric: list[str] = []
        failed: list[str] = []
        for number, command in enumerate(game_solution.milestones, start=1):
            rubric.append(f"scoring step {number} of {many}")
            if done[command]:
                done[command] -= 1
            else:
                failed.append(f"scoring step {number} of {many} is not done")
        if self._game.view.lost:
            failed.append(f"the game was lost by: {self._game.commands[-1]}")
        return Evidence(
            level=level,
            rubric=tuple(rubric),
            failed=tuple(failed),
            reference="; ".join(game_solution.commands) if level == "reference" else None,
        )

    def state_hash(self) -> str:
        view = self._game.view
        shown = [view.observation, view.look, view.inventory, view.commands, view.score, view.won, view.lost]
        state = [self._task.id, self._turns, self._scored, shown]
        return hashlib.blake2b(json.dumps(state).encode(), digest_size=8).hexdigest()

    def fork(self, messages: Sequence[Message]) -> TextWorldEpisode:
        episode = TextWorldEpisode(self._task, show_commands=self._show_commands, seconds=self._seconds)
        for message in messages:
            episode.step(message)
        return episode


def command_of(text: str) -> str:
    """The first line with something on it, without a quotation around it; thinking in <think> tags is left out."""
    _, spoken = split_thinking(text)
    lines = [line.strip().strip("`\"'> ") for line in (spoken or "").splitlines()]
    return next((line for line in lines if line), "")
