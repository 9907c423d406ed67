"""BFCL: every task's reference succeeds and silence fails, our score is the benchmark's own, forks are exact."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.experiment.parts import default_environment

pytest.importorskip("bfcl_eval", reason="needs the extra bfcl")
pytest.importorskip("mpmath", reason="needs the extra bfcl")

from rti_exp.config.check import check
from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.remote import ChatModel
from rti_exp.envs.base import Environment
from rti_exp.envs.bfcl.data import CATEGORIES, entries
from rti_exp.envs.bfcl.episode import BfclEpisode
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.parts import build_environment
from rti_exp.rollout.remote_rollouts import RemoteRollouts
from rti_exp.types import Status
from tests.support.bfcl import official, play, reference_messages, say, task_of, use, whole_turns
from tests.support.faulty_server import FaultyServer, completion


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
    environment = default_environment("bfcl_base", category="miss_func")
    assert isinstance(environment, Environment)
    train, heldout = environment.tasks("train"), environment.tasks("heldout")
    assert (len(train), len(heldout)) == (150, 50)
    assert not {task.id for task in train} & {task.id for task in heldout}
    assert heldout[0].id == "multi_turn_miss_func_3"
    everything = default_environment("bfcl_base", category="miss_func", heldout_every=1)
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
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_environment("bfcl_base", **options)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"^env=bfcl_miss_func needs the package bfcl_eval: pip install 'rti-exp"):
        default_environment("bfcl_base", category="miss_func")


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
    second = BfclEpisode(task, max_steps=20)
    assert second.state_hash() == fresh
    assert play(second, messages).reward == 1.0


def test_the_current_folder_is_part_of_the_state() -> None:
    task = task_of("base", 0)
    inside, outside = BfclEpisode(task, max_steps=20), BfclEpisode(task, max_steps=20)
    inside.step(use("cd", folder="document"))
    outside.step(use("pwd"))
    assert inside.state_hash() != outside.state_hash()


def test_a_request_with_too_many_steps_fails_the_task() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=2)
    results = [episode.step(use("pwd")) for _ in range(3)]
    assert [result.done for result in results] == [False, False, True]
    assert results[-1].reward == 0.0
    assert episode.evidence("rubric").failed[-1] == "request 1: more than 2 turns with tool calls for one request"


def test_a_tool_that_is_given_later() -> None:
    task = task_of("miss_func", 0)  # `sort` comes with request 4
    episode = BfclEpisode(task, max_steps=20)
    names = [tool["name"] for tool in episode.tools]
    assert "sort" not in names
    assert "cp" not in names  # excluded in the whole task
    announced = [play(episode, [say()]).observations[0].content for _ in range(3)][-1]
    given = json.loads(announced.split("\n")[0])
    assert [tool["name"] for tool in given] == ["sort"]
    assert announced.endswith("I have updated some more functions you can choose from. What about now?")
    assert "sort" in [tool["name"] for tool in episode.tools]


def test_evidence_names_what_failed_and_no_call_of_the_reference() -> None:
    task = task_of("base", 0)
    episode = BfclEpisode(task, max_steps=20)
    episode.step(use("pwd"))
    episode.step(say())
    episode.step(say())
    evidence = episode.evidence("rubric")
    assert evidence.rubric == tuple(
        f"request {turn}: the tools' state and answers are as they should be" for turn in range(1, 5)
    )
    assert evidence.failed == (
        "request 1: the state of GorillaFileSystem is not as it should be (root)",
        "request 2: no tool was called",
        "request 3: not reached",
        "request 4: not reached",
    )
    assert evidence.reference is None
    for calls in task.payload["reference"]:
        for text in calls:
            assert text not in evidence.text
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
    evidence = episode.evidence("reference")
    assert not any(part in message.content for part in evidence.failed for message in shown)


def test_there_are_800_tasks() -> None:
    assert [len(entries(category)) for category in CATEGORIES] == [200] * 4


def test_a_model_with_native_calls_gets_a_later_tool_with_its_request() -> None:
    """An endpoint takes calls of the listed tools only: `sort` has to be among them from request 4 on."""
    offered: list[bool] = []

    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        offered.append("sort" in [tool["function"]["name"] for tool in body["tools"]])
        return completion("Done.")

    with FaultyServer(answer=answer) as server:
        model = ChatModel(server.settings(), key="policy.remote")
        rollouts = RemoteRollouts(
            model=model, settings=default_settings(RemotePolicySettings), temperature=0.0, top_p=1.0, seed=0
        )
        trajectory = rollouts.run(default_environment("bfcl_base", category="miss_func"), task_of("miss_func", 0), 0)
    assert trajectory.status is Status.OK
    assert offered == [number >= 3 for number in range(len(offered))]
    assert len(offered) == len(trajectory.turns) > 4
