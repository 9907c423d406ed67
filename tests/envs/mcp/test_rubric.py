"""MCP: the rubric's conditions one by one, task files, and options that are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.experiment.parts import default_environment

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.envs.mcp.environment import INSTALL
from rti_exp.envs.mcp.rubric import CallRecord, Record, read_condition
from rti_exp.envs.mcp.task_file import read_tasks
from rti_exp.experiment.parts import build_environment
from tests.support.mcp import COUNT_TO_3, task_file

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
def test_an_invalid_condition_is_refused(node: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_condition(node, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r'line 1: split \'test\': must be "train" or "heldout"'),
        ({"request": ""}, r"line 1: request must be text"),
        ({"rubric": []}, r"line 1: rubric must be a list of conditions"),
        ({"answer": "x"}, r"line 1: unknown field 'answer'; there are id, family"),
        ({"rubric": [COUNT_TO_3["rubric"][0]] * 2}, r"line 1: rubric: two conditions have the same name"),
        ({"system": 3}, r"line 1: system must be text"),
    ],
)
def test_an_invalid_task_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tasks(task_file(tmp_path, {**COUNT_TO_3, **change}))


def test_invalid_task_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"env\.tasks_file='nowhere\.jsonl': must be a JSONL file, or builtin:navigat"):
        read_tasks("nowhere.jsonl")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="must have tasks"):
        read_tasks(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="line 2: id 'three' occurs twice"):
        read_tasks(task_file(tmp_path, COUNT_TO_3, COUNT_TO_3))
    (tmp_path / "broken").write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1: must be a JSON object"):
        read_tasks(str(tmp_path / "broken"))


def test_tasks_are_separated_by_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    line = json.dumps({**COUNT_TO_3, "request": "a\u2028b\u0085c"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + line.encode("utf-8") + b"\n")
    [task] = read_tasks(str(path))
    assert "a\u2028b\u0085c" in json.dumps(task.payload, ensure_ascii=False)


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
        ({"url": "http://x", "judge": {"model": ""}}, r"env\.judge\.model='': must be a text that is not blank"),
        ({"url": "http://x", "judge": {"modle": "a"}}, r"env\.judge\.modle: unknown key"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_environment("mcp_navigation", **{"command": None, **options})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="env=mcp needs the package mcp: pip install 'rti-exp"):
        default_environment("mcp_navigation", command=None, url="http://x")
    assert INSTALL == "pip install 'rti-exp[mcp]'"


def test_the_settings_for_a_real_map_compose_and_its_example_tasks_are_tasks(
    composed: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself needs a network and a key: it is not started here."""
    path = Path(__file__).parents[3] / "examples" / "map_tasks.jsonl"
    config = check(composed("env=mcp_map", "probe=none", f"env.tasks_file={path}", f"env.command=[{sys.executable}]"))
    monkeypatch.delenv("AMAP_MAPS_API_KEY", raising=False)
    with pytest.raises(SettingsError, match=r"the environment variable AMAP_MAPS_API_KEY .* must be set"):
        build_environment(config.env, config.env_timeout)
    monkeypatch.setenv("AMAP_MAPS_API_KEY", "a-key")
    world = build_environment(config.env, config.env_timeout)
    tasks = [*world.tasks("train"), *world.tasks("heldout")]
    assert [(task.id, task.family) for task in tasks] == [
        ("west-lake", "navigation_route"),
        ("people-square", "navigation_route"),
    ]
    assert "a-key" not in json.dumps(config.plain)
