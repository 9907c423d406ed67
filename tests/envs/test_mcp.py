"""MCP: a real server over stdio and HTTP, the rubric's conditions one by one, judges and servers that fail."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.engines.base import EngineUnavailable
from rti_exp.envs.base import Environment, InfrastructureError, StepResult
from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.environment import INSTALL
from rti_exp.envs.mcp.episode import McpEpisode
from rti_exp.envs.mcp.judge import Judge, read_verdict
from rti_exp.envs.mcp.navigation import tasks as navigation_tasks
from rti_exp.envs.mcp.navigation.town_map import TownMap
from rti_exp.envs.mcp.rubric import CallRecord, Record, read_condition
from rti_exp.envs.mcp.session import McpSession, ServerSpec, close_all
from rti_exp.envs.mcp.task_file import BUILTIN, read_tasks
from rti_exp.settings import SettingsError
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


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    path = tmp_path_factory.mktemp("server") / "counter.py"
    path.write_text(COUNTER, encoding="utf-8")
    yield ["{python}", str(path)]
    close_all()
    assert _gone(str(path))  # also the server that hung


@pytest.fixture(scope="module")
def navigation() -> Mcp:
    return Mcp(command=["{python}", "-m", "rti_exp.envs.mcp.navigation"], seconds=START)


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
        {"check": "answer_number", "name": "told", "value": 3, "text": "3 is told"},
    ],
    "reference": "add(3)",
}


def counting(folder: Path, counter: list[str], **options: Any) -> Mcp:
    options = {"seconds": START, "shared": False, "state_tool": "secret_state", **options}
    return Mcp(command=counter, tasks_file=task_file(folder, COUNT_TO_3), **options)


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


def test_the_navigation_reference_succeeds_and_the_misstep_of_the_paper_fails(navigation: Mcp) -> None:
    """Searched without the city, the first place of the name is another one."""
    assert isinstance(navigation, Environment)
    for task in (*navigation.tasks("train")[:2], *navigation.tasks("heldout")[:2]):
        messages = reference_messages(task)
        result = play(navigation.start(task), messages)
        assert (result.done, result.reward, result.reward_parts) == (True, 1.0, {"route": 1.0, "answer": 1.0})
        episode = navigation.start(task)
        stops = list(task.payload["rubric"][0]["arguments"]["stops"])
        goal = TownMap().places[stops[-1]]
        told = episode.step(use("search_places", query=goal.name)).observations[0].content
        stops[-1] = told.split(":")[0]
        assert stops[-1] != goal.id
        mode = task.payload["rubric"][0]["arguments"]["mode"]
        route = episode.step(use("plan_route", stops=stops, mode=mode)).observations[0].content
        assert episode.step(say(f"It is {route}")).reward == 0.0
        assert episode.evidence("rubric").failed[0] == task.payload["rubric"][0]["text"]


def test_every_navigation_task_can_be_solved_and_the_file_is_what_makes_it() -> None:
    town = TownMap()
    lines = BUILTIN["builtin:navigation"].read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == list(navigation_tasks.tasks())
    goals: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for task in read_tasks("builtin:navigation"):
        called, number = task.payload["rubric"]
        places = [town.places[stop] for stop in called["arguments"]["stops"]]
        for place in places:
            assert town.search(f"{place.name} {place.city}") == [place]
        assert town.search(places[-1].name)[0] != places[-1]
        route = town.route(called["arguments"]["stops"], called["arguments"]["mode"])
        assert number["value"] in (route.minutes, route.kilometres)
        goals[task.split].add(places[-1].city)
    assert not goals["train"] & goals["heldout"]
    assert {split: len(found) for split, found in goals.items()} == {"train": 16, "heldout": 8}


def test_routes_by_hand() -> None:
    town = TownMap()
    one, two = [place for place in town.places.values() if place.city == "Oslo"][:2]
    other = next(place for place in town.places.values() if place.city == "Rome")
    inside = town.route([one.id, two.id], "walk")
    length = ((one.x - two.x) ** 2 + (one.y - two.y) ** 2) ** 0.5
    assert inside.kilometres == round(length, 1)
    assert inside.minutes == round(60 * length / 5)
    assert inside.cities == ("Oslo",)
    there = town.route([one.id, other.id], "drive")  # Oslo is at (0, 0), Rome 40 km to the east
    ends = (one.x**2 + one.y**2) ** 0.5 + ((other.x - 40) ** 2 + other.y**2) ** 0.5
    assert there.kilometres == pytest.approx(40 + ends, abs=0.051)
    assert there.cities == ("Oslo", "Rome")
    with pytest.raises(ValueError, match="no place with the id 'p1'"):
        town.route([one.id, "p1"], "drive")
    with pytest.raises(ValueError, match="mode must be one of drive"):
        town.route([one.id, two.id], "fly")


def test_tools_and_what_a_server_says_of_bad_calls(navigation: Mcp) -> None:
    task = navigation.tasks("train")[0]
    episode = navigation.start(task)
    tools = {tool["name"]: tool for tool in episode.tools}
    assert set(tools) == {"search_places", "place_details", "plan_route"}
    assert tools["search_places"]["parameters"]["required"] == ["query"]
    assert [message.role for message in episode.messages] == ["system", "user"]
    malformed = Message(role="assistant", content="{", malformed="not valid JSON")
    cases = [
        (malformed, "Error: not valid JSON"),
        (use("fly"), "Error: there is no tool 'fly'."),
        (use("place_details", place_id="p1"), "there is no place with the id 'p1'; search for it"),
        (use("search_places", query=None), "Input should be a valid string"),
        (use("search_places"), "Field required"),
        (use("search_places", query="Nowhere"), "Nothing found."),
    ]
    for message, text in cases:
        result = episode.step(message)
        assert text in result.observations[0].content
        assert not result.done
    both = Message(role="assistant", content="", tool_calls=(ToolCall(name="fly", arguments={}),) * 2)
    assert len(episode.step(both).observations) == 2
    assert play(episode, reference_messages(task)).reward == 1.0


def test_a_fork_is_exact_where_the_server_is_shared(navigation: Mcp) -> None:
    task = navigation.tasks("heldout")[1]
    messages = reference_messages(task)
    episode, hashes = navigation.start(task), []
    for message in messages:
        hashes.append(episode.state_hash())
        episode.step(message)
    assert len(set(hashes)) == len(messages)
    forks = [navigation.start(task).fork(messages[:step]) for step in range(len(messages))]
    assert [fork.state_hash() for fork in forks] == hashes
    assert play(forks[2], messages[2:]).reward == 1.0


def test_each_episode_has_a_server_of_its_own_and_a_fork_is_exact(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter)
    task = world.tasks("train")[0]
    episode, other = world.start(task), world.start(task)
    assert "secret_state" not in {tool["name"] for tool in episode.tools}
    assert episode.step(use("add", n=2)).observations[0].content == "now 2"
    assert other.step(use("add", n=1)).observations[0].content == "now 1"
    middle = episode.state_hash()
    assert play(episode, [use("add", n=1), say("It is 3.")]).reward == 1.0
    fork = world.start(task).fork([use("add", n=2)])
    assert fork.state_hash() == middle != other.state_hash()
    assert fork.step(use("secret_state")).observations[0].content == "Error: there is no tool 'secret_state'."
    result = fork.step(say("It is 3."))
    assert (result.reward, result.reward_parts) == (0.0, {"state": 0.0, "told": 1.0})
    found = fork.evidence("rubric")
    assert (found.rubric, found.failed) == (("the count is 3", "3 is told"), ("the count is 3",))
    assert found.reference is None
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


def test_a_state_that_cannot_be_read_is_no_zero(tmp_path: Path, counter: list[str]) -> None:
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
def test_a_server_that_does_not_start_is_told(tmp_path: Path, code: str, message: str) -> None:
    world = Mcp(command=["{python}", "-c", code], tasks_file=task_file(tmp_path, COUNT_TO_3), seconds=3)
    with pytest.raises(InfrastructureError, match=message):
        world.start(world.tasks("train")[0])


def test_a_tool_that_the_config_names_and_the_server_has_not(tmp_path: Path, counter: list[str]) -> None:
    world = counting(tmp_path, counter, state_tool="nothing")
    with pytest.raises(InfrastructureError, match=r"the MCP server has no tool 'nothing'; it has \['add', 'clock'"):
        world.start(world.tasks("train")[0])


def test_no_server_outlives_its_episode_or_its_parent(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(COUNTER, encoding="utf-8")
    command = ["{python}", str(tmp_path / "own.py")]
    code = (
        "import sys, time\nfrom rti_exp.envs.mcp import Mcp\n"
        f"world = Mcp(command={command!r}, tasks_file={task_file(tmp_path, COUNT_TO_3)!r}, shared=False, seconds=120)\n"
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
        assert len(_running(marker)) == 1
        parent.stdin.write("\n")
        assert parent.stdout.readline() == "dropped\n"
        assert _gone(marker)
        parent.stdin.write("\n")
        assert parent.stdout.readline() == "up\n"
        assert len(_running(marker)) == 1
    finally:
        parent.kill()
        parent.wait()
    assert _gone(marker)


def _running(marker: str) -> list[int]:
    """Processes whose command is our interpreter with the server's file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parts = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in parts and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            found.append(int(folder.name))
    return found


def _gone(marker: str) -> bool:
    for _ in range(600):
        if not _running(marker):
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def http_server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "rti_exp.envs.mcp.navigation", "--http", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def test_over_http(http_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAP_TOKEN", "Bearer x")
    world = Mcp(url=http_server, headers={"Authorization": "MAP_TOKEN"}, seconds=START)
    task = world.tasks("train")[0]
    assert play(world.start(task), reference_messages(task)).reward == 1.0


def test_a_server_over_http_that_is_not_there() -> None:
    world = Mcp(url="http://127.0.0.1:9/mcp", seconds=5)
    with pytest.raises(InfrastructureError, match="the MCP server did not start"):
        world.start(world.tasks("train")[0])


RECORD = Record(
    calls=(
        CallRecord(name="route", arguments={"to": "P 12", "km": 5, "fast": True}, answer="ok", failed=False),
        CallRecord(name="route", arguments={"to": "p13"}, answer="no", failed=True),
        CallRecord(name="route", arguments={"to": "p14", "stops": ["a", "b"]}, answer="ok", failed=False),
    ),
    answer="The way to  LUNA takes 1,234.5 minutes.",
    state="Count=3",
)


@pytest.mark.parametrize(
    ("node", "met"),
    [
        ({"check": "called", "tool": "route"}, True),
        ({"check": "called", "tool": "fly"}, False),
        ({"check": "called", "tool": "route", "arguments": {"to": "p 12"}}, True),
        ({"check": "called", "tool": "route", "arguments": {"to": "p12"}}, False),
        ({"check": "called", "tool": "route", "arguments": {"to": "p13"}}, False),  # the call failed
        ({"check": "called", "tool": "route", "arguments": {"km": 5.0}}, True),
        ({"check": "called", "tool": "route", "arguments": {"km": "5"}}, True),
        ({"check": "called", "tool": "route", "arguments": {"km": 6}}, False),
        ({"check": "called", "tool": "route", "arguments": {"fast": True}}, True),
        ({"check": "called", "tool": "route", "arguments": {"fast": 1}}, False),
        ({"check": "called", "tool": "route", "arguments": {"stops": ["a", "b"]}}, True),
        ({"check": "called", "tool": "route", "arguments": {"stops": ["b", "a"]}}, False),
        ({"check": "called", "tool": "route", "arguments": {"to": "p14"}, "last": True}, True),
        ({"check": "called", "tool": "route", "arguments": {"km": 5}, "last": True}, False),
        ({"check": "not_called", "tool": "fly"}, True),
        ({"check": "not_called", "tool": "route", "arguments": {"to": "p14"}}, False),
        ({"check": "answer_contains", "any_of": ["nothing", "to luna"]}, True),
        ({"check": "answer_contains", "any_of": ["nothing"]}, False),
        ({"check": "answer_number", "value": 1234.5}, True),
        ({"check": "answer_number", "value": 1235, "tolerance": 0.5}, True),
        ({"check": "answer_number", "value": 1235, "tolerance": 0.4}, False),
        ({"check": "state_contains", "contains": "count=3"}, True),
        ({"check": "state_contains", "contains": "count=4"}, False),
    ],
)
def test_conditions(node: dict[str, Any], met: bool) -> None:
    assert read_condition({**node, "text": "x"}, 1).check.met(RECORD) is met


@pytest.mark.parametrize(
    ("answer", "value"), [("17", 17.0), ("-3 of 5", 5.0), ("p12", None), ("none", None), ("12,5 km and 3", 3.0)]
)
def test_the_number_of_an_answer(answer: str, value: float | None) -> None:
    record = Record(calls=(), answer=answer, state="")
    for candidate in (17.0, 5.0, 3.0, 12.0):
        condition = read_condition({"check": "answer_number", "value": candidate, "text": "x"}, 1)
        assert condition.check.met(record) is (candidate == value)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ([], r"condition 1: must be an object with check, one of called"),
        ({"check": "guess"}, r"must be an object with check"),
        ({"check": "called", "text": "x"}, r"condition 1: called needs tool, text"),
        ({"check": "called", "tool": "a", "arguments": [], "text": "x"}, r"called needs arguments, an object"),
        ({"check": "called", "tool": "a", "tol": 1, "text": "x"}, r"called has no tol; it has tool, arguments, last"),
        ({"check": "answer_number", "value": "5", "text": "x"}, r"answer_number needs value, a finite number"),
        ({"check": "answer_number", "value": True, "text": "x"}, r"answer_number needs value, a finite number"),
        ({"check": "answer_contains", "any_of": "a", "text": "x"}, r"answer_contains needs any_of, a list of texts"),
        ({"check": "called", "tool": "a"}, r"condition 1: needs text"),
    ],
)
def test_what_is_no_condition(node: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_condition(node, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r'line 1: split \'test\': must be "train" or "heldout"'),
        ({"request": ""}, r"line 1: request must be text"),
        ({"rubric": []}, r"line 1: rubric must be a list of conditions"),
        ({"answer": "x"}, r"line 1: unknown field 'answer'; there are id, family"),
        ({"rubric": [COUNT_TO_3["rubric"][0]] * 2}, r"line 1: rubric: two conditions have one name"),
        ({"system": 3}, r"line 1: system must be text"),
    ],
)
def test_what_is_no_task(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tasks(task_file(tmp_path, {**COUNT_TO_3, **change}))


def test_task_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"env\.tasks_file='nowhere\.jsonl': must be a JSONL file, or builtin:navigat"):
        read_tasks("nowhere.jsonl")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="must have tasks"):
        read_tasks(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="line 2: id 'three' comes twice"):
        read_tasks(task_file(tmp_path, COUNT_TO_3, COUNT_TO_3))
    (tmp_path / "broken").write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1: must be a JSON object"):
        read_tasks(str(tmp_path / "broken"))


@dataclass
class FakeJudge:
    answers: list[str | Exception]
    asked: list[tuple[Sequence[Message], float, int | None]] = field(default_factory=list)

    def reply(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int | None) -> Any:
        self.asked.append((messages, temperature, seed))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return type("Reply", (), {"message": say(answer)})()


def judged(folder: Path, counter: list[str], model: FakeJudge) -> Mcp:
    rubric = [{"check": "judge", "name": "polite", "question": "Is the answer polite?", "text": "the answer is polite"}]
    path = task_file(folder, {**COUNT_TO_3, "rubric": rubric})
    return Mcp(command=counter, tasks_file=path, judge_model=model, shared=True, seconds=START)


def test_a_judges_verdict_is_the_reward(tmp_path: Path, counter: list[str]) -> None:
    model = FakeJudge(['{"met": true}', '{"met": false}'])
    world = judged(tmp_path, counter, model)
    task = world.tasks("train")[0]
    episode = world.start(task)
    assert episode.evidence("rubric").failed == ("the answer is polite",)  # not over: nobody is asked
    episode.step(use("add", n=0))
    assert episode.step(say("Three, please.")).reward == 1.0
    assert episode.evidence("rubric").failed == ()
    rude = [use("add", n=0), say("Three!")]
    assert play(world.start(task), rude).reward == 0.0
    assert world.start(task).fork(rude).evidence("rubric").failed == ("the answer is polite",)
    assert len(model.asked) == 2  # what it said of a conversation it is not asked again
    text = model.asked[0][0][1].content
    assert "[user]\nCount to three." in text
    assert '[assistant]\n{"name": "add", "arguments": {"n": 0}}' in text
    assert "[tool]\nnow 0" in text
    assert text.endswith("The condition: Is the answer polite?")


def test_a_judge_that_cannot_be_read_is_asked_again_with_other_seeds() -> None:
    model = FakeJudge(["yes", '{"met": "true"}', '<think>{"met": false}</think>```json\n{"met": true}\n```'])
    assert Judge(model, retries=2).met([say("x")], "?") is True
    assert [(temperature, seed) for _, temperature, seed in model.asked] == [(0.0, 0), (1.0, 1), (1.0, 2)]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([EngineUnavailable("down")], "the judge failed: EngineUnavailable: down"),
        (["yes"] * 3, "the judge gave no verdict: 'yes'"),
    ],
)
def test_a_judge_that_fails_is_no_zero(tmp_path: Path, counter: list[str], answers: list[Any], message: str) -> None:
    world = judged(tmp_path, counter, FakeJudge(answers))
    with pytest.raises(InfrastructureError, match=message):
        world.start(world.tasks("train")[0]).step(say("3"))


@pytest.mark.parametrize(
    "text", ["", "true", '{"met": 1}', '{"met": null}', '{"met": true, "why": "x"}', '[{"met": true}]', "met: true"]
)
def test_what_is_no_verdict(text: str) -> None:
    assert read_verdict(text) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"env\.command, env\.url: exactly one of them must be given"),
        ({"command": ["a"], "url": "http://x"}, r"exactly one"),
        ({"command": []}, r"env\.command=\[\]: must begin with a program"),
        ({"command": ["no-such-program"]}, r"there is no 'no-such-program'"),
        ({"url": "ftp://x"}, r"env\.url: must begin with http:// or https://"),
        ({"url": "http://me:secret@x"}, r"^env\.url: must begin .* and hold no password$"),
        ({"url": "http://x", "headers": {"A": "NOT_SET_AT_ALL"}}, r"the environment variable NOT_SET_AT_ALL"),
        ({"url": "http://x", "max_turns": 0}, r"env\.max_turns=0: must be an integer >= 1"),
        ({"url": "http://x", "seconds": 0.0}, r"env\.seconds=0\.0: must be a finite number > 0"),
        ({"url": "http://x", "judge": {"model": ""}}, r"env\.judge\.model='': must be the name"),
        ({"url": "http://x", "judge": {"modle": "a"}}, r"env\.judge\.modle: unknown key"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mcp(**options)


def test_a_judges_condition_needs_a_judge(tmp_path: Path) -> None:
    rubric = [{"check": "judge", "question": "?", "text": "x"}]
    path = task_file(tmp_path, {**COUNT_TO_3, "rubric": rubric})
    with pytest.raises(ValueError, match=r"env\.judge=null: must be a model's settings, task 'three' has a judge's"):
        Mcp(url="http://x", tasks_file=path)


def test_the_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="env=mcp needs the package mcp: pip install 'rti-exp"):
        Mcp(url="http://x")
    assert INSTALL == "pip install 'rti-exp[mcp]'"


def test_secrets_of_our_environment_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
