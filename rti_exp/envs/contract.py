"""The contract of an environment, checked where its values enter the program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.types import Evidence, Message, Task

LARGEST_REWARD = 1e9
"""A larger reward is the environment's mistake: the statistics of a group would overflow."""


def checked_tasks(tasks: Any, split: str) -> list[Task]:
    """
    Raises:
        ValueError: an item is not a task, or two tasks have the same id.
    """
    listed = list(tasks)
    for task in listed:
        if not (isinstance(task, Task) and isinstance(task.id, str)):
            raise ValueError(f'tasks("{split}") must give Task objects with a text as id; it gave {_shown(task)}')
    [(task_id, count)] = Counter(task.id for task in listed).most_common(1) or [("", 0)]
    if count > 1:
        raise ValueError(f'tasks("{split}") must give each id once; {task_id!r} comes {count} times')
    return listed


def checked_opening(messages: Any, tools: Any) -> tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...]]:
    """
    Raises:
        InfrastructureError: an opening message is not text, or a tool is not a JSON-schema function.
    """
    return _checked_messages(messages, "an opening message"), checked_tools(tools)


def checked_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """
    Raises:
        InfrastructureError: a tool is not a JSON-schema function.
    """
    for tool in (listed := tuple(tools)):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not (isinstance(function, Mapping) and isinstance(function.get("name"), str)):
            raise InfrastructureError(f"the environment gave the tool {_shown(tool)}; it must be an object with a name")
        try:
            json.dumps(tool)
        except (TypeError, ValueError) as error:
            raise InfrastructureError(f"the environment's tool {function['name']!r} must be JSON: {error}") from error
    return listed


def checked_result(result: Any) -> StepResult:
    """The result with numbers as floats; a numpy or torch scalar is a number.

    Raises:
        InfrastructureError: it is not a `StepResult`, an observation is not text, or at the episode's end the reward or
            one of its parts is not a usable number.
    """
    if not isinstance(result, StepResult):
        raise InfrastructureError(f"the environment's step gave {_shown(result)}; it must give a StepResult")
    observations = _checked_messages(result.observations, "an observation")
    if not result.done:
        return StepResult(observations=observations, done=False)
    reward = _number(result.reward, "the reward")
    if not abs(reward) <= LARGEST_REWARD:  # also true for NaN
        raise InfrastructureError(f"the environment gave the reward {reward}; it must be at most {LARGEST_REWARD:g}")
    parts = {str(name): _number(value, f"the reward part {name} =") for name, value in result.reward_parts.items()}
    return StepResult(observations=observations, done=True, reward=reward, reward_parts=parts)


def checked_hash(state_hash: Any) -> str:
    """
    Raises:
        InfrastructureError: it is neither text nor an integer.
    """
    if not isinstance(state_hash, str | int):
        raise InfrastructureError(f"the environment gave the state hash {_shown(state_hash)}; it must be text")
    return str(state_hash)


def checked_evidence(evidence: Any) -> Evidence:
    """
    Raises:
        InfrastructureError: it is not an `Evidence` of texts.
    """
    if not isinstance(evidence, Evidence) or not all(
        isinstance(text, str) for text in (*evidence.rubric, *evidence.failed, evidence.reference or "")
    ):
        raise InfrastructureError(f"the environment gave the evidence {_shown(evidence)}; it must be Evidence of texts")
    return evidence


def _checked_messages(messages: Any, what: str) -> tuple[Message, ...]:
    for message in (listed := tuple(messages)):
        if not (isinstance(message, Message) and isinstance(message.content, str)):
            raise InfrastructureError(f"the environment gave {what} that is not text: {_shown(message)}")
    return listed


def _number(value: Any, what: str) -> float:
    # An array of one element converts too, but it is a mistake: its environment has one reward per row of a batch.
    if isinstance(value, str | bytes) or getattr(value, "shape", ()) != ():
        raise InfrastructureError(f"the environment gave {what} {_shown(value)}; it must be a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InfrastructureError(f"the environment gave {what} {_shown(value)}; it must be a number") from error


def _shown(value: Any) -> str:
    return f"{value!r:.200}"
