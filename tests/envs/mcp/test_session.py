"""MCP: what a server may answer, and which of it ends the session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.session import McpSession, ServerSpec
from tests.support import raw_mcp_server
from tests.support.mcp import START, play, say, task_file, use
from tests.support.parts import environment_options

COMMAND = ("{python}", raw_mcp_server.__file__)
NAMES = {"error", "unlock", "long", "die", "text", "structured", "resource", "blob", "link", "image", "picture"}
ASK: dict[str, Any] = {
    "id": "ask",
    "split": "train",
    "request": "Where?",
    "rubric": [{"check": "state_contains", "contains": "Zürich", "text": "the state names Zürich"}],
}


@pytest.fixture(scope="module")
def session() -> Iterator[McpSession]:
    session = McpSession(ServerSpec(command=COMMAND, seconds=START))
    yield session
    session.close()


def raw_world(folder: Path, **options: Any) -> Mcp:
    return default_environment("mcp", command=COMMAND, tasks_file=task_file(folder, ASK), seconds=START, **options)


@pytest.mark.parametrize("code", [-32603, -32602, -32601, -32600, -32700, -32000, -32001, 7])
def test_an_error_response_is_a_failed_answer_and_the_session_continues(session: McpSession, code: int) -> None:
    answer = session.call("error", {"code": code})
    assert (answer.text, answer.failed) == ("Error: no such town", True)
    assert not session.broken
    assert session.call("text", {}).text == "only text"


def test_a_result_that_breaks_the_protocol_is_a_failed_answer(session: McpSession) -> None:
    answer = session.call("invalid", {})
    assert answer.failed
    assert answer.text.startswith("Error: ")
    assert not session.broken


def test_a_policys_error_costs_no_other_episode_of_a_shared_session(tmp_path: Path) -> None:
    world = raw_world(tmp_path, shared=True)
    task = world.tasks("train")[0]
    careless, careful = world.start(task), world.start(task)
    assert careless.step(use("error", code=-32603)).observations[0].content == "Error: no such town"
    assert careful.step(use("text")).observations[0].content == "only text"
    assert careless.step(say("Nowhere.")).reward == 0.0


def test_a_lost_connection_ends_the_session() -> None:
    session = McpSession(ServerSpec(command=COMMAND, seconds=START))
    with pytest.raises(InfrastructureError, match=r"the MCP server (failed in die|is gone): .*Connection closed"):
        session.call("die", {})
    assert session.broken


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("structured", '{"city": "Zürich"}'),
        ("resource", "[resource file:///notes.txt]\nThe code is 7."),
        ("blob", "[resource file:///a.zip: application/zip, not shown]"),
        ("link", "[link https://x.org/a: a, text/html, Map.]"),
        ("image", "[image: image/png, not shown]\na map"),
        ("picture", '[image: image/png, not shown]\n{"city": "Zürich"}'),
        ("text", "only text"),  # its output schema promises structured content
    ],
)
def test_a_result_shows_what_a_model_can_read(session: McpSession, tool: str, text: str) -> None:
    answer = session.call(tool, {})
    assert (answer.text, answer.failed) == (text, False)


def test_a_condition_reads_the_state_without_escapes(tmp_path: Path) -> None:
    episode = raw_world(tmp_path, state_tool="structured").start
    assert play(episode(raw_world(tmp_path).tasks("train")[0]), [say("There.")]).reward == 1.0


def test_a_cursor_that_does_not_move_ends_the_list() -> None:
    session = McpSession(ServerSpec(command=(*COMMAND, "stuck"), seconds=START))
    assert {tool["name"] for tool in session.tools} == NAMES | {"invalid"}
    assert len(session.tools) == len(NAMES | {"invalid"})
    session.close()


def test_a_list_without_end_is_refused() -> None:
    with pytest.raises(InfrastructureError, match="its list of tools has more than 100 pages"):
        McpSession(ServerSpec(command=(*COMMAND, "growing"), seconds=START))


def test_tools_that_appear_are_offered_and_tools_that_go_are_refused(tmp_path: Path) -> None:
    world = raw_world(tmp_path, shared=False)
    episode = world.start(world.tasks("train")[0])
    assert "there is no tool 'open'" in episode.step(use("open")).observations[0].content
    announced = episode.step(use("unlock")).observations[0].content
    opened = {"name": "open", "description": "open", "parameters": {"type": "object"}}
    assert announced == f"done\nNew tools:\n{json.dumps(opened)}\nRemoved tools: long"
    assert opened in episode.tools
    assert episode.step(use("open")).observations[0].content == "opened"
    assert episode.step(use("long")).observations[0].content == "Error: there is no tool 'long'."
    fork = episode.fork([use("open"), use("unlock"), use("open"), use("long")])
    assert fork.state_hash() == episode.state_hash()
    assert fork.tools == episode.tools


def test_an_isolated_episode_has_the_current_tools(tmp_path: Path) -> None:
    options = environment_options("mcp", command=COMMAND, tasks_file=task_file(tmp_path, ASK), seconds=START)
    world = IsolatedEnvironment("rti_exp.envs.mcp.Mcp", options, timeout=START)
    episode = world.start(world.tasks("train")[0])
    assert "open" not in {tool["name"] for tool in episode.tools}
    episode.step(use("unlock"))
    assert "open" in {tool["name"] for tool in episode.tools}
    world.close()
