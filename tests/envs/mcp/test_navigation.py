"""MCP: the navigation benchmark over the town's map, over stdio and HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.navigation import tasks as navigation_tasks
from rti_exp.envs.mcp.navigation.town_map import TownMap
from rti_exp.envs.mcp.task_file import BUILTIN, read_tasks
from rti_exp.types import Message, ToolCall
from tests.support.mcp import START, play, reference_messages, say, use


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
        answer = episode.step(use("search_places", query=goal.name)).observations[0].content
        stops[-1] = answer.split(":")[0]
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
        condition_texts = f"{called['text']} {number['text']}"  # at level rubric: not the answer
        assert not any(secret in condition_texts for secret in (*called["arguments"]["stops"], str(number["value"])))
        places = [town.places[stop] for stop in called["arguments"]["stops"]]
        for place in places:
            assert town.search(f"{place.name} {place.city}") == [place]
        assert town.search(places[-1].name)[0] != places[-1]
        route = town.route(called["arguments"]["stops"], called["arguments"]["mode"])
        assert number["value"] in (route.minutes, route.kilometres)
        goals[task.split].add(places[-1].city)
    assert not goals["train"] & goals["heldout"]
    assert {split: len(cities) for split, cities in goals.items()} == {"train": 16, "heldout": 8}


def test_routes_by_hand() -> None:
    town = TownMap()
    first, second = [place for place in town.places.values() if place.city == "Oslo"][:2]
    distant = next(place for place in town.places.values() if place.city == "Rome")
    inside = town.route([first.id, second.id], "walk")
    length = ((first.x - second.x) ** 2 + (first.y - second.y) ** 2) ** 0.5
    assert inside.kilometres == round(length, 1)
    assert inside.minutes == round(60 * length / 5)
    assert inside.cities == ("Oslo",)
    there = town.route([first.id, distant.id], "drive")  # Oslo is at (0, 0), Rome 40 km to the east
    ends = (first.x**2 + first.y**2) ** 0.5 + ((distant.x - 40) ** 2 + distant.y**2) ** 0.5
    assert there.kilometres == pytest.approx(40 + ends, abs=0.051)
    assert there.cities == ("Oslo", "Rome")
    with pytest.raises(ValueError, match="no place with the id 'p1'"):
        town.route([first.id, "p1"], "drive")
    with pytest.raises(ValueError, match="mode must be one of drive"):
        town.route([first.id, second.id], "fly")


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
    half = Message(role="assistant", content="", tool_calls=both.tool_calls[:1], malformed="Call 2 is broken.")
    answers = [one.content for one in episode.step(half).observations]
    assert answers == ["Error: there is no tool 'fly'.", "Error: Call 2 is broken."]
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
    world = default_environment(
        "mcp_navigation", command=None, url=http_server, headers={"Authorization": "MAP_TOKEN"}, seconds=START
    )
    task = world.tasks("train")[0]
    assert play(world.start(task), reference_messages(task)).reward == 1.0


def test_a_server_over_http_that_is_not_there() -> None:
    world = default_environment("mcp_navigation", command=None, url="http://127.0.0.1:9/mcp", seconds=5)
    with pytest.raises(InfrastructureError, match="the MCP server did not start"):
        world.start(world.tasks("train")[0])
