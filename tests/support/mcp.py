"""What the tests of MCP servers share: a server that counts, turns, and how episodes are played."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.envs.base import StepResult
from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.episode import McpEpisode
from rti_exp.envs.mcp.navigation.town_map import TownMap
from rti_exp.experiment.parts import default_environment
from rti_exp.types import Message, Task, ToolCall

COUNTER = """
import os, sys, time
from mcp.server import MCPServer
server = MCPServer("counter", log_level="CRITICAL")
count = 0

@server.tool(structured_output=False)
def add(n: int) -> str:
    '''Adds to the count.'''
    global count
    count += n
    return f"now {count}"

@server.tool(structured_output=False)
def clock() -> str:
    '''A different answer each time.'''
    return str(time.monotonic_ns())

@server.tool(structured_output=False)
def secret_state() -> str:
    '''The whole state.'''
    return f"count={count}"

@server.tool(structured_output=False)
def long() -> str:
    '''A long text.'''
    return "x" * 100

@server.tool(structured_output=False)
def fail() -> str:
    '''Raises.'''
    raise ValueError("a bug of the server")

@server.tool(structured_output=False)
def die() -> str:
    '''Ends the process.'''
    os._exit(3)

@server.tool(structured_output=False)
def hang() -> str:
    '''Never answers.'''
    time.sleep(1000)
    return ""

server.run()
"""


START = 120.0
"""Seconds that a server may take to start on a busy machine."""


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def use(name: str, /, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def task_file(folder: Path, *tasks: Mapping[str, Any]) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(task) for task in tasks), encoding="utf-8")
    return str(path)


COUNT_TO_3: dict[str, Any] = {
    "id": "three",
    "split": "train",
    "request": "Count to three.",
    "rubric": [
        {"check": "state_contains", "name": "state", "contains": "count=3", "text": "the count is 3"},
        {"check": "answer_number", "name": "number", "value": 3, "text": "3 is told"},
    ],
    "reference": "add(3)",
}


def counting(folder: Path, counter: list[str], **options: Any) -> Mcp:
    options = {"seconds": START, "shared": False, "state_tool": "secret_state", **options}
    return default_environment("mcp", command=counter, tasks_file=task_file(folder, COUNT_TO_3), **options)


def play(episode: McpEpisode, messages: Sequence[Message]) -> StepResult:
    return [episode.step(message) for message in messages][-1]


def reference_messages(task: Task) -> list[Message]:
    """The searches with the city, the route, the answer."""
    town, (called, number) = TownMap(), task.payload["rubric"]
    places = [town.places[stop] for stop in called["arguments"]["stops"]]
    return [
        *(use("search_places", query=f"{place.name} {place.city}") for place in places),
        use("plan_route", **called["arguments"]),
        say(f"It is {number['value']}."),
    ]


def running(marker: str) -> list[int]:
    """Processes whose command is our interpreter with the server's file."""
    numbers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parts = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in parts and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            numbers.append(int(folder.name))
    return numbers


def gone(marker: str) -> bool:
    for _ in range(600):
        if not running(marker):
            return True
        time.sleep(0.1)
    return False
