"""Tasks from a JSONL file: one object a line.

    {"id": "route-1", "family": "route", "split": "train", "request": "How far is ...?", "system": "You help ...",
     "rubric": [{"check": "called", "tool": "plan_route", "arguments": {"to": "p12"}, "text": "a route to p12"}],
     "reference": "search, then plan_route to p12; 17 km"}

`system` and `reference` may be left out; `family` is "mcp" by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rti_exp.envs.mcp.rubric import Condition, Judged, read_condition
from rti_exp.types import Task

BUILTIN = {"builtin:navigation": Path(__file__).parent / "navigation" / "tasks.jsonl"}
_FIELDS = ("id", "family", "split", "request", "system", "rubric", "reference")


def read_tasks(name: str) -> list[Task]:
    """The tasks of a file, or of a file that ships with the package (`BUILTIN`).

    Raises:
        ValueError: there is no such file, or a line is not a task; the message names the line.
    """
    path = BUILTIN.get(name, Path(name).expanduser())
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a text may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"env.tasks_file={name!r}: must be a JSONL file, or {', '.join(BUILTIN)} ({error})") from error
    tasks: list[Task] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = _task(json.loads(line))
            if task.id in seen:
                raise ValueError(f"id {task.id!r} occurs twice")
        except ValueError as error:
            raise ValueError(f"env.tasks_file={name!r}, line {number}: {error}") from error
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise ValueError(f"env.tasks_file={name!r}: must have tasks")
    return tasks


def _task(node: Any) -> Task:
    if not isinstance(node, Mapping):
        raise ValueError("must be a JSON object")
    unknown = [name for name in node if name not in _FIELDS]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(_FIELDS)}")
    for name in ("id", "split", "request"):
        if not isinstance(node.get(name), str) or not node[name]:
            raise ValueError(f"{name} must be text")
    for name in ("family", "system", "reference"):
        if not isinstance(node.get(name, ""), str):
            raise ValueError(f"{name} must be text")
    if node["split"] not in ("train", "heldout"):
        raise ValueError(f'split {node["split"]!r}: must be "train" or "heldout"')
    if not isinstance(node.get("rubric"), list) or not node["rubric"]:
        raise ValueError("rubric must be a list of conditions")
    conditions_of(node["rubric"])
    payload = {name: node[name] for name in ("request", "system", "rubric", "reference") if name in node}
    return Task(id=node["id"], family=node.get("family", "mcp"), split=node["split"], payload=payload)


def conditions_of(rubric: list[Any]) -> list[Condition]:
    """
    Raises:
        ValueError: an item is not a condition, or two have the same name.
    """
    conditions = [read_condition(node, number) for number, node in enumerate(rubric, start=1)]
    if len({condition.name for condition in conditions}) < len(conditions):
        raise ValueError("rubric: two conditions have the same name")
    return conditions


def needs_judge(task: Task) -> bool:
    return any(isinstance(condition.check, Judged) for condition in conditions_of(task.payload["rubric"]))
