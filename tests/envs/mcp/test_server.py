"""MCP: real servers over stdio: state, forks, and servers that raise, hang or die."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.mcp.session import McpSession, ServerSpec
from tests.support.mcp import (
    COUNT_TO_3,
    COUNTER,
    START,
    counting,
    gone,
    play,
    running,
    say,
    task_file,
    use,
)


def test_each_episode_has_a_separate_server_and_a_fork_is_exact(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter)
    task = world.tasks("train")[0]
    episode, second = world.start(task), world.start(task)
    assert "secret_state" not in {tool["name"] for tool in episode.tools}
    assert episode.step(use("add", n=2)).observations[0].content == "now 2"
    assert second.step(use("add", n=1)).observations[0].content == "now 1"
    middle = episode.state_hash()
    assert play(episode, [use("add", n=1), say("It is 3.")]).reward == 1.0
    fork = world.start(task).fork([use("add", n=2)])
    assert fork.state_hash() == middle != second.state_hash()
    assert fork.step(use("secret_state")).observations[0].content == "Error: there is no tool 'secret_state'."
    result = fork.step(say("It is 3."))
    assert (result.reward, result.reward_parts) == (0.0, {"state": 0.0, "number": 1.0})
    evidence = fork.evidence("rubric")
    assert (evidence.rubric, evidence.failed) == (("the count is 3", "3 is told"), ("the count is 3",))
    assert evidence.reference is None
    assert fork.evidence("reference").reference == "add(3)"
    assert fork.evidence("none").text == ""


def test_an_answer_that_changes_shows_in_the_hash(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter)
    task = world.tasks("train")[0]
    episode = world.start(task)
    episode.step(use("clock"))
    assert world.start(task).fork([use("clock")]).state_hash() != episode.state_hash()


def test_partial_reward_and_long_answers(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, partial_reward=True, answer_characters=10)
    episode = world.start(world.tasks("train")[0])
    assert episode.step(use("long")).observations[0].content == "x" * 10 + " [cut]"
    assert episode.step(say("3")).reward == 0.5


def test_a_servers_bug_is_its_answer_and_its_death_or_silence_a_failure(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, state_tool=None)
    task = world.tasks("train")[0]
    episode = world.start(task)
    assert "Error executing tool fail" in episode.step(use("fail")).observations[0].content
    with pytest.raises(InfrastructureError, match="the MCP server"):
        episode.step(use("die"))
    with pytest.raises(InfrastructureError, match="the MCP server is gone"):
        episode.step(use("add", n=1))
    hung = McpSession(ServerSpec(command=tuple(counter), seconds=START))
    hung._connection._server = ServerSpec(command=tuple(counter), seconds=0.5)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"gave no answer to hang within 0\.5 s"):
        hung.call("hang", {})
    assert time.monotonic() - began < 30
    assert hung.broken


def test_a_state_that_cannot_be_read_gives_no_reward(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, state_tool="fail")
    episode = world.start(world.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="the MCP server's fail failed: Error executing tool fail"):
        episode.step(say("3"))


def test_a_shared_server_that_died_is_started_again(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, shared=True)
    task = world.tasks("train")[0]
    episode = world.start(task)
    with pytest.raises(InfrastructureError):
        episode.step(use("die"))
    assert world.start(task).step(use("add", n=1)).observations[0].content == "now 1"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(4)", r"the MCP server did not start: .*[Cc]onnection closed"),
        ("import time; time.sleep(100)", r"the MCP server did(| not) .*(within|timed out)"),
    ],
)
def test_a_server_that_does_not_start_is_an_infrastructure_failure(tmp_path: Path, code: str, message: str) -> None:
    world = default_environment(
        "mcp", command=["{python}", "-c", code], tasks_file=task_file(tmp_path, COUNT_TO_3), seconds=3
    )
    with pytest.raises(InfrastructureError, match=message):
        world.start(world.tasks("train")[0])


def test_a_tool_that_the_config_names_and_the_server_has_not(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, state_tool="nothing")
    with pytest.raises(InfrastructureError, match=r"the MCP server has no tool 'nothing'; it has \['add', 'clock'"):
        world.start(world.tasks("train")[0])


def test_no_server_outlives_its_episode_or_its_parent(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COUNTER, encoding="utf-8")
    command, tasks = ["{python}", str(tmp_path / "own.py")], task_file(tmp_path, COUNT_TO_3)
    code = (
        "import sys, time\nfrom rti_exp.experiment.parts import default_environment\n"
        f"world = default_environment('mcp', command={command!r}, tasks_file={tasks!r}, shared=False, seconds=120)\n"
        "one = world.start(world.tasks('train')[0])\nprint('up', flush=True)\nsys.stdin.readline()\n"
        "del one\ntime.sleep(0.1)\nprint('dropped', flush=True)\nsys.stdin.readline()\n"
        "two = world.start(world.tasks('train')[0])\nprint('up', flush=True)\ntime.sleep(100)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    marker = command[-1]
    try:
        assert parent.stdout.readline() == "up\n"
        assert len(running(marker)) == 1
        parent.stdin.write("\n")
        assert parent.stdout.readline() == "dropped\n"
        assert gone(marker)
        parent.stdin.write("\n")
        assert parent.stdout.readline() == "up\n"
        assert len(running(marker)) == 1
    finally:
        parent.kill()
        parent.wait()
    assert gone(marker)


def test_a_server_gets_only_the_named_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "hidden")
    monkeypatch.setenv("MAP_KEY", "given")
    path = tmp_path / "show.py"
    path.write_text(
        "import os\nfrom mcp.server import MCPServer\nserver = MCPServer('e', log_level='CRITICAL')\n"
        "@server.tool(structured_output=False)\ndef show() -> str:\n    '''x'''\n"
        "    return f\"{os.environ.get('OUR_KEY')} {os.environ.get('MAP_KEY')}\"\nserver.run()\n"
    )
    session = McpSession(ServerSpec(command=("{python}", str(path)), pass_environment=("MAP_KEY",), seconds=START))
    assert session.call("show", {}).text == "None given"
    session.close()
    assert session.broken
    assert os.environ["OUR_KEY"] == "hidden"
