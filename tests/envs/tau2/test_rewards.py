"""Every task: its solution scores 1, idleness scores what the benchmark says, and so does whatever else is played."""

from __future__ import annotations

import zlib

import pytest

from rti_exp.envs.base import InfrastructureError
from rti_exp.types import Message, Task
from tests.support.tau2_play import (
    benchmark_task,
    gold_turns,
    official_reward,
    play,
    random_turns,
    say,
    task_of,
    world,
)

DOMAINS = ("mock", "telecom", "retail", "airline")
TELECOM_SAMPLE = (
    "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]",
    "[service_issue]airplane_mode_on|break_apn_settings|overdue_bill_suspension[PERSONA:None]",
)
FAST = [
    *[("mock", task) for task in world("mock").tasks("train")],
    *[("telecom", task_of("telecom", name)) for name in TELECOM_SAMPLE],
    ("retail", task_of("retail", "0")),
    ("airline", task_of("airline", "1")),
]
IDLE_MEANS = {"telecom": 0.0, "retail": 7 / 114, "airline": 19 / 50}
"""Share of tasks that doing nothing solves, counted once with the benchmark's own evaluation."""
sample = pytest.mark.parametrize(("domain", "task"), FAST, ids=lambda value: getattr(value, "id", value))


def compared(domain: str, task: Task, turns: list[Message]) -> float | None:
    """Our reward, checked against the benchmark's; None if the benchmark's evaluation raises.

    It raises where an assertion is about a record that is not there, which is no reward of ours either, and where a
    transcript shows the id of a new bill: it draws these at random, and does not find them again.
    """
    known = benchmark_task(domain, task)
    episode = world(domain).start(task)
    result, failure = None, ""
    try:
        result = play(episode, turns)
    except InfrastructureError as error:
        failure = str(error)
    if result is None:
        with pytest.raises(ValueError, match="not found") as official:
            official_reward(domain, episode, known)
        assert str(official.value) in failure
        return None
    try:
        reward, parts = official_reward(domain, episode, known)
    except ValueError as error:
        if "bill_id" in str(error):
            return None
        raise
    assert (result.reward, dict(result.reward_parts)) == (reward, parts), task.id
    return result.reward


def of_solution(domain: str, task: Task) -> float | None:
    return compared(domain, task, gold_turns(benchmark_task(domain, task)))


def of_random_game(domain: str, task: Task, trial: int = 0) -> float | None:
    seed = zlib.crc32(task.id.encode()) + trial
    return compared(domain, task, random_turns(domain, benchmark_task(domain, task), seed))


def of_idleness(domain: str, task: Task) -> float | None:
    return compared(domain, task, [say("I am sorry, I cannot help you.")])


@sample
def test_the_solution_scores_one(domain: str, task: Task) -> None:
    assert of_solution(domain, task) == 1.0


@sample
def test_whatever_is_played_scores_as_the_benchmark_scores_it(domain: str, task: Task) -> None:
    assert of_random_game(domain, task) in (0.0, 1.0, None)


def test_idleness_in_the_mock_domain() -> None:
    """Solved by doing nothing: what only a judge of language could tell, and a transfer that leaves no record."""
    rewards = {task.payload["task"]: of_idleness("mock", task) for task in world("mock").tasks("train")}
    assert {name for name, reward in rewards.items() if reward == 1.0} == {"create_task_1_nl_eval"}
    assert {name for name, reward in rewards.items() if reward is None} == {"create_task_1_with_env_assertions"}


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_every_solution_scores_one(domain: str) -> None:
    assert [task.id for task in world(domain).tasks("train") if of_solution(domain, task) != 1.0] == []


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_random_games_of_every_task_score_as_the_benchmark_scores_them(domain: str) -> None:
    rewards = [of_random_game(domain, task, trial) for task in world(domain).tasks("train") for trial in range(2)]
    known = [reward for reward in rewards if reward is not None]
    assert len(known) >= 0.8 * len(rewards)
    assert 0 < sum(known) < len(known)


@pytest.mark.slow
@pytest.mark.parametrize("domain", sorted(IDLE_MEANS))
def test_idleness_scores_what_the_benchmark_says(domain: str) -> None:
    rewards = [of_idleness(domain, task) for task in world(domain).tasks("train")]
    assert sum(reward or 0.0 for reward in rewards) / len(rewards) == pytest.approx(IDLE_MEANS[domain])
