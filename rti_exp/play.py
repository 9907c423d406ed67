"""`python -m rti_exp.play`: play an episode of the town in the terminal, in the agent's place."""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from rti_exp.envs.town.families import FAMILIES
from rti_exp.envs.town.world import TownEpisode, draw_task
from rti_exp.experiment.parts import default_environment
from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call
from rti_exp.runs.redaction import redact_output
from rti_exp.types import Message

HELP = (
    'Write to the user, or call a tool: search query="Nova, Bern", or the JSON itself. '
    "Empty line: the rubric. Ctrl-D: stop."
)


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    parser = argparse.ArgumentParser(prog="python -m rti_exp.play", description=__doc__)
    parser.add_argument("family", nargs="?", choices=list(FAMILIES), help="kind of task; a random one if left out")
    parser.add_argument("--seed", type=int, default=None, help="which task; a random one if left out")
    parser.add_argument("--split", choices=("train", "heldout"), default="heldout")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    family = options.family or random.Random(seed).choice(list(FAMILIES))
    console = Console(highlight=False)
    turns = default_environment("town").max_turns
    console.print(f"{family}, --seed {seed}, at most {turns} turns. {HELP}", style="dim", markup=False)
    episode = TownEpisode(draw_task(family, options.split, seed, 0))
    return play(episode, console, lambda: console.input(Text("you: ", style="bold")), turns)


def play(episode: TownEpisode, console: Console, ask: Callable[[], str], turns: int) -> int:
    """Plays to the end; returns 0 if the episode succeeded, 1 if not, 130 if it was left."""
    show(console, episode.messages)
    for tool in episode.tools:
        needed = ", ".join(tool["parameters"]["required"])
        console.print(f"  {tool['name']}({needed})  {tool['description']}", style="dim", markup=False)
    answered = False
    for _ in range(turns):
        try:
            text = ask().strip()
            while not text:
                console.print(rubric(episode, answered), style="dim", markup=False)
                text = ask().strip()
        except (EOFError, KeyboardInterrupt):
            return 130
        result = episode.step(read(text, [tool["name"] for tool in episode.tools]))
        show(console, result.observations)
        answered = True
        if result.done:
            console.print("The user has nothing to answer to that: the episode is over.", style="dim")
            parts = ", ".join(f"{name} {value:g}" for name, value in result.reward_parts.items())
            console.print(f"reward {result.reward:g} ({parts})", style="bold", markup=False)
            return 0 if result.reward == 1.0 else 1
    console.print("reward 0 (no turns left)", style="bold")
    return 1


def rubric(episode: TownEpisode, answered: bool) -> str:
    """The goal; also what of it is not met, once there has been a turn."""
    found = episode.evidence("rubric")
    return (found if answered else replace(found, failed=())).text


def read(text: str, tools: Sequence[str]) -> Message:
    """A line as an assistant turn: JSON, `tool name="value" ...`, or a text to the user."""
    if text.startswith("{"):
        try:
            return Message(role="assistant", content=text, tool_calls=(parse_tool_call(text),))
        except MalformedToolCall as error:
            return Message(role="assistant", content=text, malformed=str(error))
    name, _, rest = text.partition(" ")
    if name in tools:
        return read(json.dumps({"name": name, "arguments": _arguments(rest)}, ensure_ascii=False), tools)
    return Message(role="assistant", content=text)


def _arguments(rest: str) -> dict[str, str]:
    """`query="a, b" to=EUR` as arguments."""
    try:
        words = shlex.split(rest)
    except ValueError:  # an open quote
        words = rest.split()
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def show(console: Console, messages: Sequence[Message]) -> None:
    for message in messages:
        console.print(f"{message.role}: {message.content}", style="cyan", markup=False)


if __name__ == "__main__":
    sys.exit(main())
