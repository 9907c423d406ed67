"""A model as the user, behind an endpoint on loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("openai", reason="needs the extra remote")

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.tau2 import Tau2
from tests.envs.tau2.play import say, task_of, use
from tests.faulty_server import MODEL, FaultyServer, completion

ROAMING = "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]"
QUICK = {"attempts": 1, "read_seconds": 5.0, "first_wait_seconds": 0.01}


def world(server: FaultyServer, domain: str = "telecom") -> Tau2:
    endpoint = {"base_url": server.base_url, "model": MODEL, **QUICK}
    return Tau2(domain=domain, user="model", user_model=endpoint, train_split="base", heldout_split="base")


def toggles(body: dict[str, Any]) -> dict[str, Any]:
    """Says hello; toggles what it is asked to, tells the result, and ends when it is thanked."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return completion(f"Done: {last['content'].splitlines()[0]}")
    if "airplane" in last["content"]:
        call = {"id": "x", "type": "function", "function": {"name": "toggle_airplane_mode", "arguments": "{}"}}
        return completion(None, message={"tool_calls": [call]}, finish_reason="tool_calls")
    return completion("Bye. ###STOP###" if "Thank you" in last["content"] else "My data does not work.")


def test_an_episode_with_a_model_that_uses_the_users_tools() -> None:
    with FaultyServer(answer=toggles) as server:
        episode = world(server).start(task_of("telecom", ROAMING))
        assert episode.messages[-1].content == "My data does not work."
        first = server.requests[0]
        assert first["messages"][0]["content"].startswith("# User Simulation Guidelines")
        assert "John Smith" in first["messages"][0]["content"]
        assert first["messages"][1] == {"role": "user", "content": "Hi! How can I help you today?"}
        assert {tool["function"]["name"] for tool in first["tools"]} >= {"toggle_airplane_mode", "run_speed_test"}
        assert first["temperature"] == 0.0
        result = episode.step(say("Please toggle airplane mode."))
        assert [message.content for message in result.observations] == ["Done: Airplane Mode is now OFF."]
        asked = server.requests[-1]["messages"]
        assert [message["role"] for message in asked[-3:]] == ["user", "assistant", "tool"]
        # The agent's own tool calls are none of the user's business.
        episode.step(use("get_customer_by_phone", phone_number="555-123-2002"))
        result = episode.step(say("Thank you."))
        assert "555-123-2002" not in json.dumps(server.requests[-1]["messages"][1:])
        assert (result.done, result.reward, episode.ending) == (True, 0.0, "user_stop")


def test_a_fork_meets_the_same_user_though_the_model_would_now_say_something_else() -> None:
    count = iter(range(1000))
    with FaultyServer(answer=lambda body: completion(f"answer {next(count)}")) as server:
        environment = world(server, "mock")
        task = task_of("mock", "create_task_1")
        turns = [say("What do you want?"), use("get_users"), say("Is that all?")]
        episode = environment.start(task)
        hashes = []
        for turn in turns:
            hashes.append(episode.state_hash())
            episode.step(turn)
        asked = len(server.requests)
        for step, expected in enumerate(hashes):
            assert environment.start(task).fork(turns[:step]).state_hash() == expected
        assert len(server.requests) == asked == 3


@pytest.mark.parametrize("fault", ["500", "401"])
def test_an_endpoint_that_fails_is_no_reward(fault: str) -> None:
    from rti_exp.rollout.episode import environment_call

    with FaultyServer([fault]) as server:
        environment = world(server, "mock")
        with pytest.raises(InfrastructureError):
            environment_call(environment.start, task_of("mock", "create_task_1"))
