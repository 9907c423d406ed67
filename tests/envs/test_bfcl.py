"""BFCL: every task's reference succeeds and silence fails, our score is the benchmark's own, forks are exact."""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

pytest.importorskip("bfcl_eval", reason="needs the extra bfcl")
pytest.importorskip("mpmath", reason="needs the extra bfcl")

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment, StepResult
from rti_exp.envs.bfcl import Bfcl
from rti_exp.envs.bfcl.backend import Backend
from rti_exp.envs.bfcl.calls import Call, Refused, check_size, parse_call
from rti_exp.envs.bfcl.data import CATEGORIES, entries, json_schema
from rti_exp.envs.bfcl.episode import BfclEpisode
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.parts import build_environment
from rti_exp.types import Message, Task, ToolCall


def task_of(category: str, number: int) -> Task:
    environment = Bfcl(category=category)
    found = [task for split in ("train", "heldout") for task in environment.tasks(split)]
    return next(task for task in found if task.id == f"multi_turn_{category}_{number}")


def say(text: str = "Done.") -> Message:
    return Message(role="assistant", content=text)


def use(name: str, /, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def with_names(call: Call, task: Task) -> Call:
    """The call with all arguments by name, as JSON tool calls have them."""
    if not call.positional:
        return call
    schema = next(tool for tool in BfclEpisode(task, max_steps=20)._all_tools if tool["name"] == call.name)
    names = list(schema["parameters"]["properties"])
    given = dict(zip(names, call.positional, strict=False))
    return Call(name=call.name, arguments={**given, **call.arguments})


def reference_messages(task: Task, drop: frozenset[int] = frozenset()) -> list[Message]:
    """The reference as assistant turns: one call a turn, then a text; `drop` leaves calls out, counted from 0."""
    messages, number = [], 0
    for calls in task.payload["reference"]:
        for text in calls:
            call = with_names(parse_call(text), task)
            if number not in drop:
                messages.append(use(call.name, **call.arguments))
            number += 1
        messages.append(say())
    return messages


def whole_turns(task: Task) -> list[Message]:
    """The reference with all calls of a user turn in one assistant turn."""
    messages = []
    for calls in task.payload["reference"]:
        named = [with_names(parse_call(text), task) for text in calls]
        made = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in named)
        messages += [Message(role="assistant", content="", tool_calls=made), say()] if made else [say()]
    return messages


def play(episode: BfclEpisode, messages: Sequence[Message]) -> StepResult:
    result = None
    for message in messages:
        result = episode.step(message)
    assert result is not None
    return result


def official(task: Task, messages: Sequence[Message], name: str) -> bool:
    """The verdict of the benchmark's own checker; the calls are the reference's own, written as it writes them."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (  # pyright: ignore[reportMissingImports]
        multi_turn_checker,
    )

    turns: list[list[list[str]]] = [[]]
    for message in messages:
        if message.tool_calls:
            one = message.tool_calls[0]
            written = ", ".join(f"{key}={value!r}" for key, value in one.arguments.items())
            turns[-1].append([f"{one.name}({written})"])
        else:
            turns.append([])
    category = task.id.rsplit("_", 1)[0]
    return multi_turn_checker(turns[:-1], task.payload["reference"], task.payload["entry"], category, name)["valid"]


def check_category(category: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        task = task_of(category, number)
        result = play(BfclEpisode(task, max_steps=20), whole_turns(task))
        assert (result.done, result.reward) == (True, 1.0), task.id
        episode = BfclEpisode(task, max_steps=20)
        silence = play(episode, [say()] * len(task.payload["reference"]))
        assert (silence.done, silence.reward) == (True, 0.0), task.id


@pytest.mark.parametrize("category", CATEGORIES)
def test_the_reference_succeeds_and_silence_fails_on_every_task(category: str) -> None:
    check_category(category, range(200))


def check_against_the_benchmark(category: str, numbers: Sequence[int], name: str) -> list[bool]:
    verdicts = []
    for number in numbers:
        task = task_of(category, number)
        calls = sum(len(turn) for turn in task.payload["reference"])
        drop = frozenset(random.Random(number).sample(range(calls), k=min(calls, number % 3)))
        messages = reference_messages(task, drop)
        reward = play(BfclEpisode(task, max_steps=60), messages).reward
        verdicts.append(official(task, messages, f"{name}_{category}"))
        assert reward == float(verdicts[-1]), (task.id, sorted(drop))
    return verdicts


@pytest.mark.parametrize("category", CATEGORIES)
def test_our_reward_is_the_benchmarks_verdict_on_every_task(category: str) -> None:
    verdicts = check_against_the_benchmark(category, range(200), "all")
    assert 60 < sum(verdicts) < 140


def test_splits_are_disjoint_and_complete() -> None:
    environment = Bfcl(category="miss_func")
    assert isinstance(environment, Environment)
    train, heldout = environment.tasks("train"), environment.tasks("heldout")
    assert (len(train), len(heldout)) == (150, 50)
    assert not {task.id for task in train} & {task.id for task in heldout}
    assert heldout[0].id == "multi_turn_miss_func_3"
    everything = Bfcl(category="miss_func", heldout_every=1)
    assert (len(everything.tasks("train")), len(everything.tasks("heldout"))) == (0, 200)
    with pytest.raises(ValueError, match="no split 'test' of BFCL"):
        environment.tasks("test")


def test_the_benchmark_as_published_has_nothing_to_train_on(
    composed: Callable[..., DictConfig], policy_folder: Path
) -> None:
    options = (f"policy.path={policy_folder}", "rollout.max_context=2048")
    config = check(composed("+benchmark=bfcl_base", *options))
    check_parts(config, training=False)
    assert (len(build_environment(config.env, config.env_timeout).tasks("heldout")), config.evaluation.tasks) == (
        200,
        200,
    )
    with pytest.raises(SettingsError, match="tasks_per_iteration=12: must be at most 0, the number of training tasks"):
        check_parts(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"category": "simple"}, r"^env\.category='simple': must be one of base, miss_func, miss_param, long_context"),
        ({"heldout_every": 0}, r"^env\.heldout_every=0: must be an integer >= 1"),
        ({"max_steps": 0}, r"^env\.max_steps=0"),
        ({"max_turns": 0}, r"^env\.max_turns=0"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bfcl(**options)


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"^env=bfcl_miss_func needs the package bfcl_eval: pip install 'rti-exp"):
        Bfcl(category="miss_func")


def test_a_fork_is_exact_at_every_step() -> None:
    for category in CATEGORIES:
        task = task_of(category, 65)
        messages = reference_messages(task)
        episode, hashes = BfclEpisode(task, max_steps=20), []
        for message in messages:
            hashes.append(episode.state_hash())
            episode.step(message)
        assert len(set(hashes)) == len(hashes)
        forks = [BfclEpisode(task, max_steps=20).fork(messages[:step]) for step in range(len(messages))]
        assert [fork.state_hash() for fork in forks] == hashes
        assert [play(fork, messages[step:]).reward for step, fork in enumerate(forks)] == [1.0] * len(forks)


def test_episodes_share_nothing() -> None:
    """Also where the state is a random generator's: the second episode draws what the first drew."""
    task = task_of("base", 155)  # a travel task
    messages = reference_messages(task)
    fresh = BfclEpisode(task, max_steps=20).state_hash()
    play(BfclEpisode(task, max_steps=20), messages)
    other = BfclEpisode(task, max_steps=20)
    assert other.state_hash() == fresh
    assert play(other, messages).reward == 1.0


def test_the_apis_do_not_change_the_policys_messages() -> None:
    """`mention` appends to the list that `post_tweet` was given."""
    task = task_of("base", 90)
    messages = reference_messages(task)
    before = copy.deepcopy(messages)
    assert play(BfclEpisode(task, max_steps=20), messages).reward == 1.0
    assert messages == before


def test_the_fingerprint_holds_the_state_and_not_the_clock() -> None:
    entry = task_of("base", 0).payload["entry"]
    one, two = Backend(entry, long_context=False), Backend(entry, long_context=False)
    assert one.fingerprint() == two.fingerprint()
    one.call(Call(name="cd", arguments={"folder": "document"}))
    assert one.fingerprint() != two.fingerprint()
    json.dumps(one.fingerprint(), allow_nan=False)


def test_the_current_folder_is_part_of_the_state() -> None:
    task = task_of("base", 0)
    inside, outside = BfclEpisode(task, max_steps=20), BfclEpisode(task, max_steps=20)
    inside.step(use("cd", folder="document"))
    outside.step(use("pwd"))
    assert inside.state_hash() != outside.state_hash()


def test_bad_calls_are_answered_and_the_episode_goes_on() -> None:
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
        assert [one.content for one in result.observations] == [text]
        assert not result.done
    wrong = episode.step(use("cd", place="document")).observations[0].content
    assert "unexpected keyword argument 'place'" in wrong
    assert play(episode, reference_messages(task)).reward == 1.0


def test_several_calls_in_one_turn_are_answered_one_by_one() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=20)
    calls = tuple(ToolCall(name="cd", arguments={"folder": name}) for name in ("document", ".."))
    result = episode.step(Message(role="assistant", content="", tool_calls=calls))
    assert [one.content for one in result.observations] == [
        '{"current_working_directory": "document"}',
        "{}",
    ]
    too_many = Message(role="assistant", content="", tool_calls=calls[:1] * 65)
    assert "more than 64 calls" in episode.step(too_many).observations[0].content


def test_a_request_with_too_many_steps_fails_the_task() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=2)
    results = [episode.step(use("pwd")) for _ in range(3)]
    assert [result.done for result in results] == [False, False, True]
    assert results[-1].reward == 0.0
    assert episode.evidence("rubric").failed[-1] == "request 1: more than 2 turns with tool calls for one request"


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


def test_a_tool_that_is_given_later() -> None:
    task = task_of("miss_func", 0)  # `sort` comes with request 4
    episode = BfclEpisode(task, max_steps=20)
    names = [tool["name"] for tool in episode.tools]
    assert "sort" not in names
    assert "cp" not in names  # excluded in the whole task
    told = [play(episode, [say()]).observations[0].content for _ in range(3)][-1]
    given = json.loads(told.split("\n")[0])
    assert [tool["name"] for tool in given] == ["sort"]
    assert told.endswith("I have updated some more functions you can choose from. What about now?")
    assert "sort" in [tool["name"] for tool in episode.tools]


def test_evidence_names_what_failed_and_no_call_of_the_reference() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=20)
    episode.step(use("pwd"))
    episode.step(say())
    episode.step(say())
    found = episode.evidence("rubric")
    assert found.rubric == tuple(
        f"request {turn}: the tools' state and answers are as they should be" for turn in range(1, 5)
    )
    assert found.failed == (
        "request 1: the state of GorillaFileSystem is not as it should be (root)",
        "request 2: no tool was called",
        "request 3: not reached",
        "request 4: not reached",
    )
    assert found.reference is None
    for calls in task.payload["reference"]:
        for text in calls:
            assert text not in found.text
    assert "mv(source='final_report.pdf', destination='temp')" in episode.evidence("reference").text
    assert episode.evidence("none").text == ""


def test_answers_that_are_missing_are_counted() -> None:
    task = task_of("base", 0)
    kept = reference_messages(task, drop=frozenset({4}))  # without the grep of request 2
    episode = BfclEpisode(task, max_steps=20)
    result = play(episode, kept)
    assert result.reward == 0.0
    assert result.reward_parts == {"turn_1": 1.0, "turn_2": 0.0, "turn_3": 1.0, "turn_4": 1.0}
    assert episode.evidence("rubric").failed == ("request 2: 1 of 2 tool answers it needs are missing",)


def test_nothing_of_the_evidence_is_shown_to_the_policy() -> None:
    task = task_of("miss_param", 7)
    episode = BfclEpisode(task, max_steps=20)
    shown = [*episode.messages, *episode.step(use("pwd")).observations, *episode.step(say()).observations]
    told = episode.evidence("reference")
    assert not any(part in message.content for part in told.failed for message in shown)


@pytest.mark.parametrize("text", ["open('/etc/passwd').read()", "f(g())", "f(x=a)", "f(**{})", "a.b()", "1 + 1", "f("])
def test_what_is_no_plain_call_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_call(text)


def test_calls_are_read_from_the_references_text() -> None:
    assert parse_call("sort('a.pdf')") == Call(name="sort", positional=("a.pdf",), arguments={})
    assert parse_call("ls(a=True, n=[1, -2.5])") == Call(
        name="ls", positional=(), arguments={"a": True, "n": [1, -2.5]}
    )


def test_no_source_of_ours_evaluates_text() -> None:
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


def test_there_are_800_tasks() -> None:
    assert [len(entries(category)) for category in CATEGORIES] == [200] * 4
