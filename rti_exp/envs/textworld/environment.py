"""TextWorldExpress as an `Environment`: some of its games, each from seeds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge, Le

from rti_exp.config.fields import Count, FinitePositive
from rti_exp.config.settings import SettingsError
from rti_exp.envs.required_packages import require
from rti_exp.envs.textworld.episode import TextWorldEpisode
from rti_exp.envs.textworld.games import GAMES
from rti_exp.types import Task

INSTALL = "pip install 'rti-exp[textworld]'"
FOLDS = {"train": ("train", 0), "heldout": ("test", 20_000)}
"""Split -> the package's fold (its folds share no object of a goal), and the fold's first seed."""
SEEDS = 1000
"""Seeds of a fold."""


class TextWorldExpress:
    """Tasks are seeded games, the same number of each game.

    Args:
        games: names out of `GAMES`.
        parameters: game -> its parameters as `name=value,name=value`; default: the package's.
        train_tasks: training tasks of each game.
        heldout_tasks: held-out tasks of each game.
        show_commands: whether each observation ends with the commands that have an effect.
        max_turns: assistant turns an episode may take.
        seconds: how long one call into the games' Java process may take.

    Raises:
        SettingsError: the package or Java is not installed.
        ValueError: an invalid value. A game's parameters are checked by the game, when it starts.
    """

    def __init__(
        self,
        *,
        games: Sequence[str],
        parameters: dict[str, str] | None,
        train_tasks: Annotated[int, Ge(1), Le(SEEDS)],
        heldout_tasks: Annotated[int, Ge(1), Le(SEEDS)],
        show_commands: bool,
        max_turns: Count,
        seconds: FinitePositive,
    ) -> None:
        unknown = [name for name in (*games, *(parameters or {})) if name not in GAMES]
        if unknown or not games or len(set(games)) < len(games):
            raise ValueError(f"env.games={list(games)}: must be a non-empty list out of {list(GAMES)}, each once")
        require(("textworld_express", "py4j"), purpose="env=textworld_express", install=INSTALL)
        if shutil.which("java") is None:
            raise SettingsError("env=textworld_express needs java on the PATH (17 is tested); there is none")
        self.max_turns = max_turns
        self._games = list(games)
        self._parameters = dict(parameters or {})
        self._counts = {"train": train_tasks, "heldout": heldout_tasks}
        self._show_commands = show_commands
        self._seconds = seconds

    def tasks(self, split: str) -> list[Task]:
        if split not in FOLDS:
            raise ValueError(f'no split {split!r} of TextWorldExpress: use "train" or "heldout"')
        fold, first = FOLDS[split]
        return [
            Task(
                id=f"{name}/{fold}/{seed}",
                family=name,
                split=split,
                payload={"name": name, "parameters": self._parameters.get(name, ""), "fold": fold, "seed": seed},
            )
            for seed in range(first, first + self._counts[split])
            for name in self._games
        ]

    def start(self, task: Task) -> TextWorldEpisode:
        return TextWorldEpisode(task, show_commands=self._show_commands, seconds=self._seconds)
