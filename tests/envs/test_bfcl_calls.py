"""BFCL: calls to the simulated APIs, their answers, and their schemas."""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval", reason="needs the extra bfcl")
pytest.importorskip("mpmath", reason="needs the extra bfcl")

from rti_exp.envs.bfcl.backend import Backend
from rti_exp.envs.bfcl.calls import Call, Refused, check_size, parse_call
from rti_exp.envs.bfcl.data import CATEGORIES, json_schema
from rti_exp.envs.bfcl.episode import BfclEpisode
from rti_exp.types import Message, ToolCall
from tests.support.bfcl import play, reference_messages, task_of, use


@pytest.mark.parametrize(
    "call",
    [
        Call(name="power", arguments={"base": 10, "exponent": 10**9}),
        Call(name="power", arguments={"base": -3, "exponent": 10**4000}),
        Call(name="logarithm", arguments={"value": 2, "base": 3, "precision": 10**9}),
        Call(name="round_number", arguments={"number": 5, "decimal_places": -(10**9)}),
    ],
)
def test_arithmetic_without_end_is_refused(call: Call) -> None:
    with pytest.raises(Refused):
        check_size(call)
    check_size(Call(name="power", arguments={"base": 2, "exponent": 1000}))
    check_size(Call(name="power", arguments={"base": 1, "exponent": 10**9}))
    check_size(Call(name="power", arguments={"base": 2.5, "exponent": 10**9}))  # a float overflows at once


@pytest.mark.parametrize("text", ["open('/etc/passwd').read()", "f(g())", "f(x=a)", "f(**{})", "a.b()", "1 + 1", "f("])
def test_text_other_than_a_plain_call_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_call(text)


def test_calls_are_read_from_the_references_text() -> None:
    assert parse_call("sort('a.pdf')") == Call(name="sort", positional=("a.pdf",), arguments={})
    assert parse_call("ls(a=True, n=[1, -2.5])") == Call(
        name="ls", positional=(), arguments={"a": True, "n": [1, -2.5]}
    )


def test_the_package_evaluates_no_text() -> None:
    import rti_exp.envs.bfcl as package

    for path in map(Path, package.__path__):
        for file in path.glob("*.py"):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert not names & {"eval", "exec", "compile"}, file


def test_schemas_are_json_schemas() -> None:
    assert json_schema({"type": "dict", "properties": {"type": {"type": "float"}, "x": {"type": "tuple"}}}) == {
        "type": "object",
        "properties": {"type": {"type": "number"}, "x": {"type": "array"}},
    }
    for category in CATEGORIES:
        for number in (0, 60, 110, 160):
            for tool in BfclEpisode(task_of(category, number), max_steps=20).tools:
                text = json.dumps(tool["parameters"])
                assert tool["parameters"]["type"] == "object"
                assert '"type": "dict"' not in text
                assert '"type": "float"' not in text


def test_bad_calls_are_answered_and_the_episode_continues() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=20)
    malformed = Message(role="assistant", content="{", malformed="The tool call is not valid JSON.")
    cases = [
        (malformed, "Error during execution: The tool call is not valid JSON."),
        (use("fly"), "Error during execution: name 'fly' is not defined"),
        (use("__init__"), "Error during execution: name '__init__' is not defined"),
        (use("_load_scenario", scenario={}), "Error during execution: name '_load_scenario' is not defined"),
        (use("kill"), "Error during execution: Function call kill is not allowed."),
        (use("cd", folder=None), "Error during execution: 'NoneType' object has no attribute 'rstrip'"),
        (use("cd", folder="nowhere"), '{"error": "cd: \'nowhere\': No such file or directory"}'),
    ]
    for message, text in cases:
        result = episode.step(message)
        assert [message.content for message in result.observations] == [text]
        assert not result.done
    wrong = episode.step(use("cd", place="document")).observations[0].content
    assert "unexpected keyword argument 'place'" in wrong
    assert play(episode, reference_messages(task)).reward == 1.0


def test_several_calls_in_one_turn_are_answered_one_by_one() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=20)
    calls = tuple(ToolCall(name="cd", arguments={"folder": name}) for name in ("document", ".."))
    result = episode.step(Message(role="assistant", content="", tool_calls=calls))
    assert [message.content for message in result.observations] == [
        '{"current_working_directory": "document"}',
        "{}",
    ]
    half = episode.step(Message(role="assistant", content="", tool_calls=calls[:1], malformed="Call 2 is broken."))
    assert [message.content for message in half.observations] == [
        '{"current_working_directory": "document"}',
        "Error during execution: Call 2 is broken.",
    ]
    too_many = Message(role="assistant", content="", tool_calls=calls[:1] * 65)
    assert "more than 64 calls" in episode.step(too_many).observations[0].content


def test_the_apis_do_not_change_the_policys_messages() -> None:
    """`mention` appends to the list that `post_tweet` was given."""
    task = task_of("base", 90)
    messages = reference_messages(task)
    before = copy.deepcopy(messages)
    assert play(BfclEpisode(task, max_steps=20), messages).reward == 1.0
    assert messages == before


def test_the_fingerprint_holds_the_state_and_not_the_clock() -> None:
    entry = task_of("base", 0).payload["entry"]
    first, second = Backend(entry, long_context=False), Backend(entry, long_context=False)
    assert first.fingerprint() == second.fingerprint()
    first.call(Call(name="cd", arguments={"folder": "document"}))
    assert first.fingerprint() != second.fingerprint()
    json.dumps(first.fingerprint(), allow_nan=False)


def test_answers_have_no_escapes() -> None:
    episode = BfclEpisode(task_of("base", 0), max_steps=20)
    assert episode.step(use("cd", folder="Zürich")).observations[0].content == (
        '{"error": "cd: \'Zürich\': No such file or directory"}'
    )
