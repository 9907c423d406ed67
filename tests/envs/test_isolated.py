"""An environment in a process of its own: what it costs when it hangs, dies or raises, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rti_exp.envs import isolated, worker_process
from rti_exp.envs.base import Environment, InfrastructureError
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.envs.worker_process import WorkerLost
from rti_exp.experiment.parts import default_environment
from rti_exp.types import Message, Task, ToolCall
from tests.support.parts import environment_options

ROOT = Path(__file__).parents[2]
TIMEOUT = 1.0
SLACK = 30.0
"""Seconds that a busy machine may take beside the time-out, for beginning a process."""


@pytest.fixture
def worlds() -> Iterator[Any]:
    created: list[IsolatedEnvironment] = []

    def make(
        target: str = "tests.support.faults.FaultyTown", timeout: float = TIMEOUT, **options: Any
    ) -> IsolatedEnvironment:
        if target == "rti_exp.envs.town.Town":
            options = environment_options("town", **options)
        created.append(IsolatedEnvironment(target, options, timeout=timeout))
        return created[-1]

    yield make
    for world in created:
        world.close()


def messages_of(task: Task) -> list[Message]:
    """The right turns of a task, as the town's agent writes them."""
    import json

    from rti_exp.envs.town.families import FAMILIES

    messages = []
    for action in FAMILIES[task.family].plan(task.payload).actions:
        calls = ()
        if action.startswith("{"):
            call = json.loads(action)
            calls = (ToolCall(name=call["name"], arguments=call["arguments"]),)
        messages.append(Message(role="assistant", content=action, tool_calls=calls))
    return messages


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_it_is_the_environment_that_it_holds(worlds: Any) -> None:
    here, there = (
        default_environment("town", train_tasks=2, heldout_tasks=1),
        worlds("rti_exp.envs.town.Town", timeout=20.0, train_tasks=2, heldout_tasks=1),
    )
    assert isinstance(there, Environment)
    assert there.max_turns == here.max_turns
    for split in ("train", "heldout"):
        assert there.tasks(split) == here.tasks(split)
    for task in here.tasks("train"):
        first, second = here.start(task), there.start(task)
        assert (list(second.messages), list(second.tools)) == (first.messages, first.tools)
        turns = messages_of(task)
        for turn in turns:
            assert second.state_hash() == first.state_hash()
            assert second.step(turn) == first.step(turn)
        for level in ("none", "rubric", "reference"):
            assert second.evidence(level) == first.evidence(level)
        assert second.fork(turns[:2]).state_hash() == first.fork(turns[:2]).state_hash()


def test_text_of_any_kind_arrives_as_it_was_sent(worlds: Any) -> None:
    world = worlds("rti_exp.envs.town.Town", timeout=20.0)
    task = world.tasks("train")[0]
    here = default_environment("town").start(task)
    there = world.start(task)
    for text in ("\x00\x1b[2J", "\ud800 half", "a\nb\u2028c", "<|end|>" * 3, "é" * 70000):
        message = Message(role="assistant", content="{", malformed=text)
        assert there.step(message) == here.step(message)
        assert there.state_hash() == here.state_hash()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", r"step took longer than 1 s"),
        ("spin", r"step took longer than 1 s"),
        ("hang with the interpreter's lock", r"step took longer than 1 s"),
        ("exit", r"process ended in step \(exit code 7\)"),
        ("kill", r"process ended in step \(SIGKILL\)"),
        ("sys.exit", "SystemExit: 3"),
        ("raise", "RuntimeError: the town is closed"),
        ("memory", "MemoryError"),
    ],
)
def test_each_fault_costs_one_episode_and_a_bounded_time(worlds: Any, fault: str, message: str) -> None:
    world = worlds(fault=fault, of=["nav_hard"])
    tasks = {task.family: task for task in world.tasks("train")}
    broken, healthy = world.start(tasks["nav_hard"]), world.start(tasks["pay_hard"])
    turns = messages_of(tasks["pay_hard"])
    here = default_environment("town").start(tasks["pay_hard"])
    assert (healthy.state_hash(), healthy.step(turns[0])) == (here.state_hash(), here.step(turns[0]))
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=message):
        broken.step(messages_of(tasks["nav_hard"])[0])
    for turn in turns[1:]:  # the other episode continues where it was
        assert (healthy.state_hash(), healthy.step(turn)) == (here.state_hash(), here.step(turn))
    assert time.monotonic() - began < TIMEOUT + SLACK
    assert healthy.evidence("reference") == here.evidence("reference")


@pytest.mark.parametrize("at", ["start", "messages", "state_hash", "evidence", "fork"])
def test_a_hang_in_any_call_is_bounded(worlds: Any, at: str) -> None:
    world = worlds(fault="hang", at=at)
    task = world.tasks("train")[0]
    began = time.monotonic()

    def walk() -> None:
        episode = world.start(task)
        episode.state_hash()
        episode.evidence("rubric")
        episode.fork([])

    with pytest.raises(WorkerLost, match=r"took longer than 1 s"):
        walk()
    assert time.monotonic() - began < TIMEOUT + SLACK


@pytest.mark.parametrize("at", ["make", "tasks"])
def test_a_hang_before_the_first_episode_is_bounded(worlds: Any, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    monkeypatch.setattr(isolated, "START_SECONDS", 8.0)
    with pytest.raises(WorkerLost, match=f"{at} took longer than 8 s"):
        worlds(fault="hang", at=at).tasks("train")


def test_an_answer_without_end_is_cut_off(worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "LARGEST_ANSWER", 2**20)
    world = worlds(fault="say too much", timeout=10.0)
    with pytest.raises(WorkerLost, match="answered step with more than 1048576 bytes"):
        world.start(world.tasks("train")[0]).step(Message(role="assistant", content="hello"))
    assert world.start(world.tasks("train")[0]).state_hash()


def test_bad_options_raise_the_environments_own_error(worlds: Any) -> None:
    with pytest.raises(ValueError, match=r"env\.families=\['nav'\]"):
        worlds(families=["nav"])
    with pytest.raises(InfrastructureError, match="RuntimeError: the town is closed"):
        worlds(fault="raise", at="make")


def lost(episode: Any) -> str:
    with pytest.raises(WorkerLost) as caught:
        episode.step(Message(role="assistant", content="hello"))
    return str(caught.value)


def test_every_hang_costs_its_own_episode_and_the_others_nothing(worlds: Any) -> None:
    world = worlds(fault="hang", timeout=0.5, of=["nav_hard"])
    tasks = {task.family: task for task in world.tasks("train")}
    broken = [world.start(tasks["nav_hard"]) for _ in range(3)]
    others = [world.start(tasks["pay_hard"]) for _ in range(3)]
    assert all("took longer" in lost(episode) for episode in broken)
    for episode in others:
        assert not episode.step(messages_of(tasks["pay_hard"])[0]).done


def test_a_replay_that_leads_elsewhere_costs_the_episode(worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds("rti_exp.envs.town.Town", timeout=20.0)
    task = world.tasks("train")[0]
    first, second = world.start(task), world.start(task)
    turns = messages_of(task)
    for episode in (first, second):
        episode.state_hash()
        episode.step(turns[0])
    assert second.state_hash()
    os.killpg(world._worker.process.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        first.state_hash()
    second._hash = "another"
    with pytest.raises(InfrastructureError, match="a replay led to another state"):
        second.step(turns[1])
    here = default_environment("town").start(task)
    here.step(turns[0])
    assert first.state_hash() == here.state_hash()


def test_what_hangs_is_ended_with_all_that_it_has_started(worlds: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"
    world = worlds(fault="hang with a child", note=str(note))
    with pytest.raises(WorkerLost):
        world.start(world.tasks("train")[0]).step(Message(role="assistant", content="hello"))
    pids = [int(text) for text in note.read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_when_the_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "note"
    lines = (
        "from rti_exp.envs.isolated import IsolatedEnvironment",
        "from rti_exp.types import Message",
        f"options = {{'fault': 'hang with a child', 'note': {str(note)!r}}}",
        "world = IsolatedEnvironment('tests.support.faults.FaultyTown', options, timeout=600)",
        "world.start(world.tasks('train')[0]).step(Message(role='assistant', content='hello'))",
    )
    parent = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], cwd=ROOT)
    wait_until(lambda: note.is_file() and len(note.read_text().split()) == 2)
    pids = [int(text) for text in note.read_text().split()]
    assert all(map(alive, pids))
    parent.send_signal(number)
    parent.wait(20)
    wait_until(lambda: not any(map(alive, pids)))
    assert parent.returncode == -number


def test_closing_ends_the_process_and_a_later_call_begins_another(worlds: Any) -> None:
    world = worlds("rti_exp.envs.town.Town", timeout=20.0)
    process = world._worker.process
    world.close()
    assert process.returncode == -signal.SIGKILL
    assert world.tasks("train")


def test_episodes_of_the_past_are_forgotten(worlds: Any) -> None:
    world = worlds("rti_exp.envs.town.Town", timeout=20.0)
    task = world.tasks("train")[0]
    for _ in range(3):
        world.start(task).fork([])
    episode = world.start(task)
    assert episode.state_hash()
    assert world._forgotten == []
    numbers = [int(name) for name in range(6)]
    with pytest.raises(InfrastructureError, match="KeyError"):
        world.call({"what": "state_hash", "episode": numbers[0]})
