"""A model as the user, behind an endpoint on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("openai", reason="needs the extra remote")

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.tau2 import Tau2
from rti_exp.evaluate import main as evaluate
from rti_exp.rollout.environment_calls import environment_call
from tests.support.faulty_server import MODEL, FaultyServer, completion
from tests.support.tau2_play import say, task_of, use

ROAMING = "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]"
REFUSED = (
    rf"{MODEL} at http://127.* denies access \(.*\); check env.user_model.base_url, env.user_model.model and "
    r"env.user_model.api_key \(the key is in USER_KEY\)"
)
QUICK = {"attempts": 1, "read_seconds": 5.0, "first_wait_seconds": 0.01}


def world(server: FaultyServer, domain: str = "telecom") -> Tau2:
    endpoint = {"base_url": server.base_url, "model": MODEL, **QUICK}
    return default_environment(
        "tau2_telecom", domain=domain, user="model", user_model=endpoint, train_split="base", heldout_split="base"
    )


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


def test_an_endpoint_that_fails_gives_no_reward() -> None:
    with FaultyServer(["500"]) as server:
        environment = world(server, "mock")
        with pytest.raises(InfrastructureError, match="server_error"):
            environment_call(environment.start, task_of("mock", "create_task_1"))


@pytest.mark.parametrize("fault", ["401", "403"])
def test_an_endpoint_that_refuses_the_key_ends_the_job(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_KEY", "wrong-and-never-shown")
    with FaultyServer([fault]) as server:
        endpoint = {"base_url": server.base_url, "model": MODEL, "api_key": "USER_KEY", **QUICK}
        environment = default_environment(
            "tau2_telecom", domain="mock", user="model", user_model=endpoint, train_split="base", heldout_split="base"
        )
        with pytest.raises(EngineUnusable, match=REFUSED) as caught:
            environment_call(environment.start, task_of("mock", "create_task_1"))
        assert len(server.requests) == 1
    assert "never-shown" not in str(caught.value)


def overrides(server: FaultyServer, policy_folder: Path) -> list[str]:
    return [
        f"policy.path={policy_folder}",
        "env=tau2_mock",
        "env.user=model",
        f"env.user_model.base_url={server.base_url}",
        f"env.user_model.model={MODEL}",
        "env.user_model.api_key=USER_KEY",
        "probe=none",
        "logger=none",
        "tasks_per_iteration=2",
        "max_iterations=1",
        "eval.tasks=1",
        "eval.samples=1",
    ]


@pytest.mark.parametrize("timeout", ["null", "60"])
def test_a_refused_key_ends_an_evaluation_with_one_line(
    timeout: str,
    policy_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if the environment is in a separate process."""
    monkeypatch.setenv("USER_KEY", "wrong-and-never-shown")
    monkeypatch.chdir(tmp_path)
    with FaultyServer(["401"]) as server:
        assert evaluate([*overrides(server, policy_folder), f"env.timeout={timeout}"]) == 1
        assert len(server.requests) == 1
    _one_line(capsys.readouterr().err)


def test_a_refused_key_ends_a_run_with_one_line(policy_folder: Path, tmp_path: Path) -> None:
    with FaultyServer(["401"]) as server:
        output = subprocess.run(
            [sys.executable, "-m", "rti_exp.train", *overrides(server, policy_folder)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "USER_KEY": "wrong-and-never-shown"},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert output.returncode == 1, output.stderr
    assert len(server.requests) == 1
    _one_line(output.stderr)
    (status,) = tmp_path.glob("runs/*/*/status.json")
    state = json.loads(status.read_text())
    assert (state["state"], state["error"]["type"]) == ("failed", "RemoteDown")


def _one_line(text: str) -> None:
    (line,) = text.splitlines()
    assert re.fullmatch(rf"failed: {REFUSED}.*", line)
    assert "never-shown" not in line
