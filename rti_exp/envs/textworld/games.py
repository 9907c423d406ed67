"""One game: its specification, its live instance in the Java process, and its solution's conditions."""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.textworld import java

GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
SHARING = ("sorting",)
"""Games whose instances of one seed share their objects: creating an instance invalidates the live ones."""
LONGEST_COMMAND = 200
"""Characters of a command that reach the game; every valid command is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSpec:
    """Identifies a game. `parameters` is `name=value,name=value`, "" for the package's defaults."""

    name: str
    parameters: str
    fold: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The game after a command. `score` is at most 1; `commands` are all commands that have an effect now."""

    observation: str
    look: str
    inventory: str
    commands: tuple[str, ...]
    score: float
    won: bool
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A way to win: its commands without detours, and those among them that raise the score."""

    commands: tuple[str, ...]
    milestones: tuple[str, ...]


_owners: weakref.WeakValueDictionary[GameSpec, Game] = weakref.WeakValueDictionary()
"""For games in SHARING: the instance that owns the objects of its seed."""
_generators: weakref.WeakKeyDictionary[java.JavaProcess, dict[tuple[str, str], Any]] = weakref.WeakKeyDictionary()


class Game:
    """A live game. After a restart of Java, or when another instance took its objects, it is replayed.

    Args:
        spec: which game.
        seconds: how long a call may take.

    Raises:
        InfrastructureError: here and in `step`: Java broke, or a replay led to another state.
    """

    def __init__(self, spec: GameSpec, seconds: float) -> None:
        self.spec = spec
        self.commands: list[str] = []
        self._seconds = seconds
        self._create()

    def _create(self) -> None:
        self._process = java.running(self._seconds)
        self._process.call(self._process.forget_unused)
        self._interface = _interface(self._process, self.spec)
        weakref.finalize(self, self._process.unused.append, self._interface)
        self.view = self._read(lambda: self._interface.generateNewGameJSON(self.spec.seed, self.spec.fold, False))
        self.description: str = self._process.call(self._interface.getTaskDescription)
        if self.spec.name in SHARING:
            _owners[self.spec] = self

    def _read(self, function: Any) -> View:
        reply = json.loads(self._process.call(function))
        if "observation" not in reply:
            raise InfrastructureError(f"the game {self.spec.name} answered {reply}")
        return View(
            observation=reply["observation"].strip(),
            look=reply["look"].strip(),
            inventory=reply["inventory"].strip(),
            commands=tuple(sorted(reply["validActions"])),
            score=float(reply["score"]),
            won=bool(reply["tasksuccess"]) or reply["score"] >= 1.0,
            lost=bool(reply["taskfailure"]),
        )

    def step(self, command: str) -> View:
        self._revive()
        self.view = self._step(command)
        return self.view

    def _step(self, command: str) -> View:
        given = " ".join(command[:LONGEST_COMMAND].encode("utf-8", "replace").decode("utf-8").split())
        self.commands.append(given)
        return self._read(lambda: self._interface.stepJSON(given))

    def _revive(self) -> None:
        spoiled = self.spec.name in SHARING and _owners.get(self.spec) is not self
        if self._process.alive and not spoiled:
            return
        before, commands, self.commands = self.view, self.commands, []
        self._create()
        for command in commands:
            self.view = self._step(command)
        if self.view != before:
            raise InfrastructureError(f"a replay of {self.spec} led to another state")


def _interface(process: java.JavaProcess, spec: GameSpec) -> Any:
    """A new interface object with the generator of the spec's game; creating a generator takes a tenth of a second."""
    generators = _generators.setdefault(process, {})
    key = (spec.name, spec.parameters)
    new = process.gateway.jvm.textworldexpress.runtime.PythonInterface
    if key not in generators:
        loader = process.call(new)
        refused = process.call(lambda: loader.load(spec.name, spec.parameters))
        if refused:
            raise InfrastructureError(f"the game {spec.name} refused {spec.parameters!r}: {refused.strip()}")
        generators[key] = process.call(loader.gameGenerator)
    generator = process.call(new)
    process.call(lambda: getattr(generator, "gameGenerator_$eq")(generators[key]))
    return generator


@functools.lru_cache(maxsize=4096)
def solution(spec: GameSpec, seconds: float) -> Solution:
    """The package's solution, without its detours.

    Raises:
        InfrastructureError: Java broke, or the solution does not win.
    """
    process = java.running(seconds)
    interface = _interface(process, spec)
    process.call(lambda: interface.generateNewGameJSON(spec.seed, spec.fold, True))
    commands = [str(command) for command in process.call(lambda: list(interface.getGoldActionSequence()))]
    process.unused.append(interface)
    _owners.pop(spec, None)
    for candidate in (_direct(spec, commands, seconds), commands):
        game, scores = Game(spec, seconds), [0.0]
        scores += [game.step(command).score for command in candidate]
        if game.view.won:
            gains = zip(candidate, scores, scores[1:], strict=False)
            milestones = tuple(command for command, before, after in gains if after > before)
            return Solution(commands=tuple(candidate), milestones=milestones)
    raise InfrastructureError(f"the package's solution of {spec} does not win")


def _direct(spec: GameSpec, commands: Sequence[str], seconds: float) -> list[str]:
    """The commands without loops, that is, without those that lead back to an earlier view."""
    game = Game(spec, seconds)
    path: list[str] = []
    seen = [_place(game.view)]
    for command in commands:
        place = _place(game.step(command))
        if place in seen:
            del path[seen.index(place) :], seen[seen.index(place) + 1 :]
        else:
            path.append(command)
            seen.append(place)
    return path


def _place(view: View) -> tuple[object, ...]:
    return (view.look, view.inventory, view.commands, view.score)
