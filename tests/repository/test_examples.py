"""The example of docs/environments.md is complete, short, and implements the environment protocol."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rti_exp.envs.base import Environment
from rti_exp.types import Message, ToolCall

ROOT = Path(__file__).parents[2]
if not ROOT.joinpath("examples").is_dir():
    pytest.skip("the examples are part of the checkout", allow_module_level=True)

from examples.doors import Doors  # noqa: E402

WORLD = Doors()
TASK = WORLD.tasks("train")[0]
CODE = TASK.payload["code"]


def call(name: str, **arguments: str) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


DONE = Message(role="assistant", content="Done.")


def test_it_implements_the_protocol() -> None:
    assert isinstance(WORLD, Environment)
    assert len(WORLD.tasks("train")) == 16
    assert not {task.payload["code"] for task in WORLD.tasks("train")} & {
        task.payload["code"] for task in WORLD.tasks("heldout")
    }


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([call("read_note"), call("enter", code=CODE), DONE], 1.0),
        ([call("enter", code="0000"), call("enter", code=CODE), DONE], 0.0),
        ([call("knock"), call("enter"), Message(role="assistant", content="{", malformed="x"), DONE], 0.0),
        ([DONE], 0.0),
    ],
)
def test_bad_calls_get_an_answer_and_only_the_code_opens(turns: list[Message], reward: float) -> None:
    episode = WORLD.start(TASK)
    results = [episode.step(turn) for turn in turns]
    assert [result.done for result in results] == [False] * (len(turns) - 1) + [True]
    assert all(len(result.observations) == 1 for result in results[:-1])
    assert results[-1].reward == reward


def test_each_call_of_a_turn_is_answered() -> None:
    both = replace(call("read_note"), tool_calls=(*call("read_note").tool_calls, *call("knock").tool_calls))
    texts = [one.content for one in WORLD.start(TASK).step(replace(both, malformed="Call 3 is broken.")).observations]
    assert texts == [f"The code is {CODE}.", "Error: no such tool, or no code.", "Error: Call 3 is broken."]


def test_a_fork_has_the_same_hash_and_every_state_a_different_one() -> None:
    turns = [call("read_note"), call("enter", code=CODE)]
    episode, hashes = WORLD.start(TASK), []
    for step in range(3):
        hashes.append(episode.state_hash())
        assert WORLD.start(TASK).fork(turns[:step]).state_hash() == hashes[-1]
        if step < 2:
            episode.step(turns[step])
    assert len(set(hashes)) == 3


def test_evidence_by_level() -> None:
    episode = WORLD.start(TASK)
    assert episode.evidence("none").text == ""
    assert episode.evidence("rubric").text == "the door is open | failed: the door is open"
    assert CODE in episode.evidence("reference").text
    assert CODE not in json.dumps([message.content for message in episode.messages])


def test_the_page_shows_the_example_verbatim() -> None:
    page = ROOT.joinpath("docs", "environments.md").read_text(encoding="utf-8")
    for name in ("doors.py", "conf/env/doors.yaml"):
        assert f"\n{ROOT.joinpath('examples', name).read_text(encoding='utf-8')}```\n" in page, name
    assert len(ROOT.joinpath("examples", "doors.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.slow
def test_it_trains_by_the_documented_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rti_exp.train", "--config-dir", "examples/conf", "env=doors", "probe=none"]
    more = ["debug=one_iteration", "logger=none", f"runs_root={tmp_path}"]
    finished = subprocess.run([*command, *more], capture_output=True, text=True, check=False, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    [metrics] = tmp_path.glob("debug/*/metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert "train" in {row["kind"] for row in rows}


@pytest.mark.slow
def test_the_loop_in_one_file_intervenes_and_trains_without_hydra_and_lightning() -> None:
    code = (
        "import sys; sys.argv = ['rl_loop.py', '--iterations', '2']\n"
        "from examples import rl_loop\n"
        "rl_loop.main()\n"
        "assert not {'hydra', 'pytorch_lightning'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    numbers = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in lines]
    assert [row[0] for row in numbers] == [1, 2]
    assert all(0 < rescued <= failed for _, _, failed, rescued, _ in numbers)
    assert all(trained > 0 for *_, trained in numbers)
