"""TextWorldExpress: solutions win in every game, forks and restarts are exact, a failing Java process is reported."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rti_exp.experiment.parts import default_environment

pytest.importorskip("textworld_express", reason="needs the extra textworld")
if shutil.which("java") is None:
    pytest.skip("needs java", allow_module_level=True)

from rti_exp.config.paths import assets_root
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment, InfrastructureError, StepResult
from rti_exp.envs.textworld import TextWorldExpress, java
from rti_exp.envs.textworld.episode import TextWorldEpisode, command_of
from rti_exp.envs.textworld.games import GAMES, Game, GameSpec, solution
from rti_exp.types import Message, Task, ToolCall

SMALL = OmegaConf.to_container(OmegaConf.load(assets_root() / "conf" / "env" / "textworld_express.yaml"))
assert isinstance(SMALL, dict)
PARAMETERS = SMALL["parameters"]


@pytest.fixture(autouse=True, scope="module")
def _ended() -> Iterator[None]:
    yield
    java.close()


def environment(*games: str, **options: Any) -> TextWorldExpress:
    return default_environment("textworld_express", games=games or GAMES, parameters=PARAMETERS, **options)


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def play(episode: TextWorldEpisode, commands: Sequence[str]) -> StepResult:
    results = [episode.step(say(command)) for command in commands]
    return results[-1]


def task_of(game: str, index: int = 0, split: str = "train") -> Task:
    return environment(game).tasks(split)[index]


@pytest.mark.parametrize("game", GAMES)
def test_the_games_own_solution_wins_and_nothing_else_does(game: str) -> None:
    world = environment(game, max_turns=20)
    for task in (*world.tasks("train")[:3], *world.tasks("heldout")[:2]):
        episode = world.start(task)
        best = solution(GameSpec(**task.payload), 30.0)
        assert len(best.commands) <= world.max_turns
        result = play(episode, best.commands)
        assert (result.done, result.reward, dict(result.reward_parts)) == (True, 1.0, {"score": 1.0, "won": True})
        assert episode.evidence("rubric").failed == ()
        idle = world.start(task)
        assert idle.step(say("look around")).reward == 0.0


@pytest.mark.parametrize("game", GAMES)
def test_forks_are_exact_alongside_other_episodes_of_the_same_task(game: str) -> None:
    """Also in the game whose instances share their objects."""
    world, task = environment(game), task_of(game, 4)
    commands = solution(GameSpec(**task.payload), 30.0).commands
    episodes = [world.start(task) for _ in range(3)]
    hashes, rewards = [], []
    for command in commands:
        hashes.append({episode.state_hash() for episode in episodes})
        rewards.append([episode.step(say(command)).reward for episode in episodes])
    assert rewards == [[0.0] * 3] * (len(commands) - 1) + [[1.0] * 3]
    assert [len(kinds) for kinds in hashes] == [1] * len(commands)
    assert len(set.union(*hashes)) == len(commands)
    messages = [say(command) for command in commands]
    forks = [world.start(task).fork(messages[:step]) for step in range(len(commands))]
    assert [{fork.state_hash()} for fork in forks] == hashes
    assert forks[-1].step(messages[-1]).reward == 1.0


def test_episodes_share_no_object() -> None:
    """Without the replay, a second instance of a seed takes the first one's objects away."""
    spec = GameSpec(name="sorting", parameters="", fold="train", seed=3)
    commands = solution(spec, 30.0).commands
    first = Game(spec, 30.0)
    first.step(commands[0])
    Game(spec, 30.0)
    for command in commands[1:]:
        first.step(command)
    assert first.view.won


def test_the_opening_and_an_answer_word_for_word() -> None:
    task = next(task for task in environment("simonsays").tasks("train") if task.payload["seed"] == 3)
    episode = environment("simonsays").start(task)
    assert [(message.role, message.content) for message in episode.messages] == [
        ("system", "You play a text game. In each turn write one command and nothing else."),
        (
            "user",
            "Your task is to do exactly what Simon says.\nSimon says, 'slice grape'.\n"
            "Commands: jump up and down; slice apple; slice grape; smell grape; touch orange",
        ),
    ]
    result = episode.step(say("slice grape"))
    assert result.observations[0].role == "user"
    assert result.observations[0].content.splitlines()[0] == "Simon says, 'jump up and down'."
    assert episode.tools == []


def test_evidence_has_the_goals_conditions_and_the_solution_at_reference_only() -> None:
    task = task_of("simonsays", 3)
    episode = environment("simonsays").start(task)
    episode.step(say("slice grape"))
    lost = episode.step(say("slice apple"))
    assert (lost.done, lost.reward) == (True, 0.0)
    assert lost.reward_parts == {"score": -1.0, "won": 0.0}
    evidence = episode.evidence("rubric")
    assert evidence.rubric == ("scoring step 1 of 3", "scoring step 2 of 3", "scoring step 3 of 3")
    assert evidence.failed == (
        "scoring step 2 of 3 is not done",
        "scoring step 3 of 3 is not done",
        "the game was lost by: slice apple",
    )
    assert evidence.reference is None
    assert not any(answer in evidence.text for answer in ("jump", "touch", "orange"))
    assert episode.evidence("reference").reference == "slice grape; jump up and down; touch orange"
    assert episode.evidence("none").text == ""


def test_conditions_of_a_game_with_detours() -> None:
    """The package's solver looks around at random; the solution here has no command that leads back."""
    task = task_of("mapreader", 3)
    best = solution(GameSpec(**task.payload), 30.0)
    assert best.milestones == ("take coin", "put coin in box")
    assert best.commands == ("move south", "take coin", "move north", "put coin in box")


def test_bad_turns_are_answered_and_the_episode_continues() -> None:
    task = task_of("simonsays", 3)
    episode = environment("simonsays", show_commands=False).start(task)
    call = Message(role="assistant", content="{}", tool_calls=(ToolCall(name="go", arguments={}),))
    broken = Message(role="assistant", content="{", malformed="not valid JSON")
    answers = [episode.step(message).observations[0].content for message in (call, broken, say("  \n "))]
    assert answers == ["There are no tools here: write one command as plain text."] * 2 + ["Write one command."]
    assert episode.step(say("slice grape")).observations[0].content == "Simon says, 'jump up and down'."


def test_hostile_text_is_a_command_like_any_other() -> None:
    episode = environment("coin").start(task_of("coin"))
    for text in ("\ud800", "x" * 100_000, "e\x00\n!c\n", "\u202e; rm -rf /"):
        result = episode.step(say(text))
        assert result.observations[0].content.startswith("Unknown action")
        assert not result.done


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("take coin", "take coin"),
        ("<think>\nnorth?\n</think>\n\n  move north \nthen south", "move north"),
        ("> `open door`", "open door"),
        ("'look around'", "look around"),
        ("", ""),
    ],
)
def test_the_command_of_a_turn(text: str, command: str) -> None:
    assert command_of(text) == command


def test_tasks_are_seeds_and_splits_are_disjoint() -> None:
    world = environment("coin", "twc", train_tasks=2, heldout_tasks=1)
    assert isinstance(world, Environment)
    assert [task.id for task in world.tasks("train")] == ["coin/train/0", "twc/train/0", "coin/train/1", "twc/train/1"]
    assert [task.id for task in world.tasks("heldout")] == ["coin/test/20000", "twc/test/20000"]
    with pytest.raises(ValueError, match="no split 'test'"):
        world.tasks("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": ["chess"]}, r"^env\.games=\['chess'\]: must be a non-empty list out of \['cookingworld'"),
        ({"games": []}, r"^env\.games=\[\]"),
        ({"games": ["coin", "coin"]}, r"each once"),
        ({"parameters": {"chess": ""}}, r"^env\.games="),
        ({"train_tasks": 0}, r"^env\.train_tasks=0: must be an integer in \[1, 1000\]"),
        ({"heldout_tasks": 1001}, r"^env\.heldout_tasks=1001"),
        ({"max_turns": 0}, r"^env\.max_turns=0"),
        ({"seconds": float("inf")}, r"^env\.seconds=inf: must be a finite number > 0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_environment("textworld_express", **options)


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingsError, match=r"^env=textworld_express needs java on the PATH"):
        default_environment("textworld_express")


def test_a_games_parameters_are_checked_by_the_game() -> None:
    world = default_environment("textworld_express", games=["coin"], parameters={"coin": "numLocations=99"})
    with pytest.raises(InfrastructureError, match=r"refused 'numLocations=99': Number of locations must be less"):
        world.start(world.tasks("train")[0])


def test_a_java_that_dies_costs_the_call_and_the_others_are_replayed() -> None:
    world, task = environment("simonsays"), task_of("simonsays", 3)
    killed, survivor = world.start(task), world.start(task)
    survivor.step(say("slice grape"))
    before = survivor.state_hash()
    process = java.running(30.0)
    process.process.kill()
    process.process.wait()
    with pytest.raises(InfrastructureError, match=r"the games' Java process ended with exit code -9"):
        process.call(killed._game._interface.getTaskDescription)
    assert not process.alive
    assert survivor.step(say("jump up and down")).observations[0].content.startswith("Simon says, 'touch orange'")
    assert survivor.fork([say("slice grape")]).state_hash() == before
    assert killed.step(say("slice grape")).observations


def test_a_java_that_hangs_is_killed_within_the_bound() -> None:
    java.close()
    world = default_environment("textworld_express", games=["simonsays"], seconds=1.0)
    episode = world.start(world.tasks("train")[0])
    process = java.running(1.0).process
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"the games' Java process gave no answer within 1\.\d s"):
        episode.step(say("look"))
    assert time.monotonic() - began < 5
    assert process.poll() is not None
    java.close()


def test_a_java_that_does_not_start_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java.close()
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_rest_until", 0.0)
    world = environment("simonsays")
    with pytest.raises(InfrastructureError, match="java ended at its start with exit code 7"):
        world.start(world.tasks("train")[0])
    with pytest.raises(InfrastructureError, match="java did not start a moment ago"):
        world.start(world.tasks("train")[0])
    monkeypatch.setattr(java, "START_SECONDS", 0.2)
    monkeypatch.setattr(java, "_rest_until", 0.0)
    fake.write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    with pytest.raises(InfrastructureError, match="java did not start within 0 s"):
        world.start(world.tasks("train")[0])


def test_no_process_outlives_its_parent() -> None:
    """The parent is killed, and can tell nobody."""
    code = (
        "import time\nfrom rti_exp.envs.textworld import java\n"
        "from rti_exp.experiment.parts import default_environment\n"
        "world = default_environment('textworld_express_simonsays')\nworld.start(world.tasks('train')[0])\n"
        "print(java.running(30.0).process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists() or not Path("/proc").exists()
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.1)
    pytest.fail(f"java {child} is still there")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
