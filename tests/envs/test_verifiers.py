"""Environments of the package `verifiers`: turns, rewards, evidence, forks, failures, and RTI on one."""

from __future__ import annotations

import gc
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment
from tests.support.parts import environment_options

pytest.importorskip("verifiers", reason="needs the package verifiers and the extra of this name")

from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment, InfrastructureError, StepResult
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.envs.verifiers import Verifiers
from rti_exp.envs.verifiers.environment import INSTALL
from rti_exp.envs.verifiers.episode import VerifiersEpisode
from rti_exp.types import Message, Task, ToolCall

NAME = "tests.support.verifiers_locks"
RUBRIC = ("opened: The lock is open in the end.",)


def locks(**options: Any) -> Verifiers:
    return default_environment("verifiers", name=options.pop("name", NAME), **options)


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def multiply(**arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name="multiply", arguments=arguments),))


def play(episode: VerifiersEpisode, *texts: str) -> StepResult:
    return [episode.step(say(text)) for text in texts][-1]


def code(task: Task) -> str:
    return task.payload["row"]["answer"]


def test_a_readable_call_is_carried_out_though_another_of_the_turn_is_broken() -> None:
    world = locks(arguments={"kind": "tools"})
    episode = world.start(world.tasks("train")[0])
    result = episode.step(replace(multiply(a=6, b=7), malformed="Call 2 is broken."))
    assert [message.content for message in result.observations] == ["42", "Error: Call 2 is broken."]


def test_rows_are_tasks_and_every_fourth_is_held_out() -> None:
    world = locks()
    assert isinstance(world, Environment)
    assert [code(task) for task in world.tasks("train")] == ["37", "74", "11", "85", "22", "59"]
    assert [(task.id, task.family) for task in world.tasks("heldout")] == [
        ("all/3", NAME),
        ("all/7", NAME),
    ]
    assert len(locks(train_tasks=2).tasks("train")) == 2
    json.dumps(world.tasks("train")[0].payload)
    with pytest.raises(ValueError, match="no split 'test'"):
        world.tasks("test")


def test_a_calls_arguments_reach_the_environment_without_escapes() -> None:
    episode = locks().start(locks().tasks("train")[0])
    [call] = episode._response(multiply(a="Zürich")).message.tool_calls
    assert call.arguments == '{"a": "Zürich"}'


def test_an_episode_its_reward_and_its_evidence() -> None:
    world = locks()
    task = world.tasks("train")[0]
    episode = world.start(task)
    assert [(one.role, one.content) for one in episode.messages] == [
        ("system", "You open locks."),
        ("user", "Open lock 0."),
    ]
    assert episode.evidence("rubric").failed == RUBRIC
    looked = episode.step(say("look"))
    assert [one.content for one in looked.observations] == ["The code is 37."]
    assert not looked.done
    assert episode.step(Message(role="assistant", content="{", malformed="not JSON")).observations[0].content == (
        "Error: not JSON"
    )
    result = episode.step(say("37"))
    assert (result.done, result.reward) == (True, 1.0)
    assert result.reward_parts == {"opened": 1.0, "quick": 1.0, "num_turns": 2.0}
    assert [one.content for one in result.observations] == ["It is open."]
    evidence = episode.evidence("reference")
    assert (evidence.rubric, evidence.failed, evidence.reference) == (RUBRIC, (), "37")
    jammed = world.start(task)
    assert play(jammed, "38", "37", "37", "37").done is False
    result = jammed.step(say("37"))  # the environment's own limit of five turns
    assert (result.done, result.reward) == (True, 0.0)
    below = jammed.evidence("rubric")
    assert below.failed == (f"{RUBRIC[0]} (it is 0)",)
    assert below.reference is None
    assert "37" not in below.text
    assert jammed.evidence("none").text == ""
    with pytest.raises(RuntimeError, match="is over"):
        jammed.step(say("37"))


def test_reward_equals_the_packages_own_rollout() -> None:
    """The same turns through verifiers' own run_rollout, with a scripted client."""
    import asyncio

    from verifiers.clients.client import Client  # pyright: ignore[reportMissingImports]
    from verifiers.types import Response, ResponseMessage  # pyright: ignore[reportMissingImports]

    world = locks()
    for task in world.tasks("train"):
        for texts in (["look", code(task)], ["1", code(task), "x", "x", "x"], [code(task)]):
            said = iter(texts)

            class Scripted(Client):
                async def get_response(self, *args: Any, said: Any = said, **kwargs: Any) -> Any:
                    message = ResponseMessage(content=next(said), finish_reason="stop", is_truncated=False)
                    return Response(id="x", created=0, model="m", message=message)

                def setup_client(self, config: Any) -> Any: ...
                async def to_native_tool(self, tool: Any) -> Any: ...
                async def to_native_prompt(self, messages: Any) -> Any: ...
                async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
                async def raise_from_native_response(self, response: Any) -> None: ...
                async def from_native_response(self, response: Any) -> Any: ...
                async def close(self) -> None: ...

            row = dict(task.payload["row"])
            state = asyncio.run(world._world._run_rollout_state(row, Scripted(None), "m", {}))
            ours = play(world.start(task), *texts)
            assert ours.reward == state["reward"]
            assert ours.reward_parts == state["metrics"]


def test_forks_are_exact_at_every_step() -> None:
    world = locks()
    task = world.tasks("train")[1]
    messages = [say("look"), say("1"), say("look"), say(code(task))]
    episode, hashes = world.start(task), []
    for message in messages:
        hashes.append(episode.state_hash())
        episode.step(message)
    assert len(set(hashes)) == 4
    for step, expected in enumerate(hashes):
        assert world.start(task).fork(messages[:step]).state_hash() == expected
    assert play(world.start(task).fork(messages[:1]), code(task)).reward == 1.0


def test_a_state_that_changes_unseen_shows_in_the_hash() -> None:
    world = locks()
    task = world.tasks("train")[0]
    first, second = (world.start(task).fork([say("dice")]) for _ in range(2))
    assert first.state_hash() != second.state_hash()


def test_tools_and_bad_calls() -> None:
    world = locks(arguments={"kind": "tools"})
    assert [task.id for task in world.tasks("heldout")] == ["eval/0", "eval/1"]  # its own evaluation set
    episode = world.start(world.tasks("train")[0])
    (tool,) = episode.tools
    assert tool["name"] == "multiply"
    assert set(tool["parameters"]["properties"]) == {"a", "b"}
    assert episode.step(multiply(a=6, b=7)).observations[0].content == "42"
    for bad in (multiply(a=1), Message(role="assistant", content="", tool_calls=(ToolCall(name="fly", arguments={}),))):
        result = episode.step(bad)
        assert not result.done
        assert result.observations[0].role == "tool"
    result = world.start(world.tasks("train")[0]).fork([multiply(a=6, b=7)]).step(say("It is 42."))
    assert (result.done, result.reward) == (True, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise", "the environment raised ValueError: a bug of the environment"),
        ("fail", "the environment ended with ToolError"),
        ("wait", r"gave no answer within 0\.5 s"),
    ],
)
def test_an_environment_that_fails_gives_no_reward(text: str, message: str) -> None:
    world = locks(seconds=0.5 if text == "wait" else 60.0)
    episode = world.start(world.tasks("train")[0])
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=message):
        episode.step(say(text))
    assert time.monotonic() - began < 30


def test_a_reward_function_that_raises_gives_no_reward() -> None:
    """The package would log it and count 0."""
    world = locks()
    task = world.tasks("heldout")[1]
    assert code(task) == "96"
    with pytest.raises(InfrastructureError, match="a reward function raised: opened: RuntimeError: a bug of the rew"):
        play(world.start(task), "96")


def test_dropped_episodes_end_their_rollouts() -> None:
    import asyncio

    from rti_exp.processes.background_loop import run

    async def alive() -> int:
        return sum("rollout" in repr(task.get_coro()) for task in asyncio.all_tasks())

    world = locks()
    before = run(alive())
    episodes: Sequence[Any] = [world.start(task) for task in world.tasks("train")]
    assert run(alive()) == before + 6
    del episodes
    gc.collect()
    for _ in range(100):
        if run(alive()) == before:
            break
        time.sleep(0.05)
    assert run(alive()) == before


def test_ctrl_c_stays_ours() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    locks(arguments={"count": 5})
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, r"env\.name='': must be the name of a verifiers environment"),
        ({"name": "no_such_thing_at_all"}, r"env\.name='no_such_thing_at_all': cannot be loaded \(ValueError"),
        ({"arguments": {"kind": "nothing"}}, r"cannot be loaded \(RuntimeError: .*no such kind"),
        ({"arguments": {"kind": "groups"}}, r"its rubric scores groups"),
        ({"heldout_every": 1}, r"env\.heldout_every=1: must be an integer >= 2"),
        ({"max_turns": 0}, r"env\.max_turns=0: must be an integer >= 1"),
        ({"train_tasks": 0}, r"env\.train_tasks=0: must be an integer >= 1"),
        ({"heldout_tasks": 0}, r"env\.heldout_tasks=0: must be an integer >= 1"),
        ({"seconds": 0.0}, r"env\.seconds=0\.0: must be a finite number > 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        locks(**options)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"env=verifiers needs the package verifiers: pip install 'rti-exp"):
        locks()
    assert INSTALL.endswith("pip install --no-deps verifiers==0.1.14")


def test_in_a_separate_process() -> None:
    world = IsolatedEnvironment(
        "rti_exp.envs.verifiers.Verifiers", environment_options("verifiers", name=NAME), timeout=60
    )
    try:
        task = world.tasks("train")[0]
        episode = world.start(task)
        episode.step(say("look"))
        assert world.start(task).fork([say("look")]).state_hash() == episode.state_hash()
        assert episode.step(say(code(task))).reward == 1.0
    finally:
        world.close()
