"""JSON forms of an environment's nouns, one object per line, between two processes.

Nothing that arrives is evaluated, and no class is chosen by it. Text is escaped to ASCII, so that a lone surrogate or a
null byte survives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.envs.base import StepResult
from rti_exp.types import Evidence, Message, Task, ToolCall


def to_line(value: Mapping[str, Any]) -> bytes:
    """
    Raises:
        TypeError, ValueError: a value without a JSON form.
    """
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"


def from_line(line: bytes) -> dict[str, Any]:
    """
    Raises:
        ValueError: the line is not a JSON object.
    """
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def message_form(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls],
        "malformed": message.malformed,
    }


def message_of(form: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(name=call["name"], arguments=call["arguments"]) for call in form["tool_calls"])
    return Message(role=form["role"], content=form["content"], tool_calls=calls, malformed=form["malformed"])


def task_form(task: Task) -> dict[str, Any]:
    return {"id": task.id, "family": task.family, "split": task.split, "payload": task.payload}


def task_of(form: Mapping[str, Any]) -> Task:
    return Task(id=form["id"], family=form["family"], split=form["split"], payload=form["payload"])


def result_form(result: StepResult) -> dict[str, Any]:
    return {
        "observations": [message_form(message) for message in result.observations],
        "done": result.done,
        "reward": result.reward,
        "reward_parts": dict(result.reward_parts),
    }


def result_of(form: Mapping[str, Any]) -> StepResult:
    return StepResult(
        observations=tuple(message_of(message) for message in form["observations"]),
        done=form["done"],
        reward=form["reward"],
        reward_parts=form["reward_parts"],
    )


def evidence_form(evidence: Evidence) -> dict[str, Any]:
    return {
        "level": evidence.level,
        "rubric": list(evidence.rubric),
        "failed": list(evidence.failed),
        "reference": evidence.reference,
    }


def evidence_of(form: Mapping[str, Any]) -> Evidence:
    return Evidence(
        level=form["level"],
        rubric=tuple(form["rubric"]),
        failed=tuple(form["failed"]),
        reference=form["reference"],
    )


def opening_form(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"messages": [message_form(message) for message in messages], "tools": list(tools)}
