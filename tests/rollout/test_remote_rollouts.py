"""Episodes of a remote model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemotePolicySettings, ToolCalls
from rti_exp.engines.remote.messages import read_reply
from rti_exp.envs.base import StepResult
from rti_exp.rollout.remote_rollouts import RemoteRollouts
from rti_exp.types import Message, Status
from tests.support.fakes import GuessWorld, call
from tests.support.faulty_server import FaultyServer, completion


class Model:
    def reply(self, messages: Sequence[Message], **_: Any) -> Any:
        return SimpleNamespace(message=Message(role="assistant", content="red"))


def scoring(reward: float, *observations: Any) -> GuessWorld:
    """A world whose first turn ends the episode with this reward."""
    world = GuessWorld()
    start = world.start

    def started(task: Any) -> Any:
        episode = start(task)
        episode.step = lambda message: StepResult(observations=observations, done=True, reward=reward)
        return episode

    world.start = started
    return world


def rolled_out(world: GuessWorld) -> Any:
    rollouts = RemoteRollouts(
        model=Model(),  # pyright: ignore[reportArgumentType]
        settings=default_settings(RemotePolicySettings),
        temperature=0.0,
        top_p=1.0,
        seed=0,
    )
    return rollouts.run(world, world.tasks("heldout")[0], 0)


def test_a_reward_is_kept():
    trajectory = rolled_out(scoring(1.0))
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.OK, 1.0, 1)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e10])
def test_an_unusable_reward_is_an_infrastructure_failure_and_not_zero(reward: float):
    trajectory = rolled_out(scoring(reward))
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
    assert math.isnan(trajectory.reward)
    assert trajectory.error == f"the environment gave the reward {reward}; it must be at most 1e+09"


def test_an_observation_that_is_not_text_is_an_infrastructure_failure():
    trajectory = rolled_out(scoring(1.0, Message(role="tool", content=None)))  # pyright: ignore[reportArgumentType]
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE


def played(*contents: str, tool_calls: ToolCalls = ToolCalls.text) -> Any:
    """The episode in which an endpoint gives these answers."""
    bodies = iter(contents)

    class Endpoint:
        def reply(self, messages: Sequence[Message], **_: Any) -> Any:
            return read_reply(json.dumps(completion(next(bodies))))

    world = GuessWorld()
    rollouts = RemoteRollouts(
        model=Endpoint(),  # pyright: ignore[reportArgumentType]
        settings=default_settings(RemotePolicySettings, tool_calls=tool_calls),
        temperature=0.0,
        top_p=1.0,
        seed=0,
    )
    return rollouts.run(world, world.tasks("train")[0], 0)


TASK = GuessWorld().tasks("train")[0]
TAKE = call("take", key=TASK.payload["key"])


def test_thinking_behind_a_tag_that_the_template_opened_is_not_the_answer():
    code = TASK.payload["code"]
    right = played(TAKE, f"not 99\n</think>\n\n{code}")
    assert (right.reward, right.turns[-1].message.thinking) == (1.0, "not 99")
    assert played(TAKE, f"{code}\n</think>\n\n99").reward == 0.0


def test_a_text_call_behind_its_thinking_is_a_call():
    trajectory = played(f"the right key\n</think>\n\n{TAKE}", "99")
    assert [turn.message.thinking for turn in trajectory.turns] == ["the right key", ""]
    assert trajectory.turns[0].observations[0].content == f"took {TASK.payload['key']}"


@pytest.mark.parametrize("text", ["null", "[]", '{"name": "take"}'])
def test_a_text_that_attempts_a_call_does_not_end_the_episode(text: str):
    trajectory = played(text, "99")
    assert len(trajectory.turns) == 2
    assert trajectory.turns[0].observations[0].content.startswith("error: The tool call must be one JSON object")


def calling(body: dict[str, Any]) -> dict[str, Any]:
    """Calls a tool under llama.cpp's way of numbering: each turn with the same id."""
    tool_call = {"id": "constant0", "type": "function", "function": {"name": "guess", "arguments": "{}"}}
    return completion(None, message={"tool_calls": [tool_call], "reasoning_content": "hm"}, finish_reason="tool_calls")


def test_ids_and_reasoning_go_back_to_the_endpoint_and_each_result_answers_its_call():
    pytest.importorskip("openai", reason="the extra `remote` is not installed")
    from rti_exp.engines.remote import ChatModel

    world = GuessWorld(max_turns=3)
    with FaultyServer(answer=calling) as server:
        settings = default_settings(RemotePolicySettings, remote=server.settings())
        rollouts = RemoteRollouts(
            model=ChatModel(settings.remote), settings=settings, temperature=0.0, top_p=1.0, seed=0
        )
        trajectory = rollouts.run(world, world.tasks("heldout")[0], 0)
    assert trajectory.status is Status.TRUNCATED
    turns = [entry for entry in server.requests[2]["messages"] if entry["role"] in ("assistant", "tool")]
    assert [entry["role"] for entry in turns] == ["assistant", "tool"] * 2
    ids = [entry["tool_calls"][0]["id"] for entry in turns[::2]]
    assert ids[0] == "constant0" != ids[1]
    assert [entry["tool_call_id"] for entry in turns[1::2]] == ids
    assert [entry["reasoning_content"] for entry in turns[::2]] == ["hm", "hm"]
