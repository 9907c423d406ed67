"""BFCL in tests: tasks, the reference as assistant turns, and the verdict of the benchmark's own checker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("bfcl_eval", reason="needs the extra bfcl")
pytest.importorskip("mpmath", reason="needs the extra bfcl")

from typing import Any

from rti_exp.envs.base import StepResult
from rti_exp.envs.bfcl.calls import Call, parse_call
from rti_exp.envs.bfcl.episode import BfclEpisode
from rti_exp.types import Message, Task, ToolCall


def task_of(category: str, number: int) -> Task:
    environment = default_environment("bfcl_base", category=category)
    tasks = [task for split in ("train", "heldout") for task in environment.tasks(split)]
    return next(task for task in tasks if task.id == f"multi_turn_{category}_{number}")


def say(text: str = "Done.") -> Message:
    return Message(role="assistant", content=text)


def use(name: str, /, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def with_names(call: Call, task: Task) -> Call:
    """The call with all arguments by name, as JSON tool calls have them."""
    if not call.positional:
        return call
    schema = next(tool for tool in BfclEpisode(task, max_steps=20)._all_tools if tool["name"] == call.name)
    names = list(schema["parameters"]["properties"])
    given = dict(zip(names, call.positional, strict=False))
    return Call(name=call.name, arguments={**given, **call.arguments})


def reference_messages(task: Task, drop: frozenset[int] = frozenset()) -> list[Message]:
    """The reference as assistant turns: one call a turn, then a text; `drop` leaves calls out, counted from 0."""
    messages, number = [], 0
    for calls in task.payload["reference"]:
        for text in calls:
            call = with_names(parse_call(text), task)
            if number not in drop:
                messages.append(use(call.name, **call.arguments))
            number += 1
        messages.append(say())
    return messages


def whole_turns(task: Task) -> list[Message]:
    """The reference with all calls of a user turn in one assistant turn."""
    messages = []
    for calls in task.payload["reference"]:
        named = [with_names(parse_call(text), task) for text in calls]
        tool_calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in named)
        messages += [Message(role="assistant", content="", tool_calls=tool_calls), say()] if tool_calls else [say()]
    return messages


def play(episode: BfclEpisode, messages: Sequence[Message]) -> StepResult:
    result = None
    for message in messages:
        result = episode.step(message)
    assert result is not None
    return result


def official(task: Task, messages: Sequence[Message], name: str) -> bool:
    """The verdict of the benchmark's own checker; the calls are the reference's own, written as it writes them."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (  # pyright: ignore[reportMissingImports]
        multi_turn_checker,
    )

    turns: list[list[list[str]]] = [[]]
    for message in messages:
        if message.tool_calls:
            call = message.tool_calls[0]
            written = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
            turns[-1].append([f"{call.name}({written})"])
        else:
            turns.append([])
    category = task.id.rsplit("_", 1)[0]
    return multi_turn_checker(turns[:-1], task.payload["reference"], task.payload["entry"], category, name)["valid"]
