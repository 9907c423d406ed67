"""Tasks from the folders of a checkout: all tasks, those that can run here, and selections of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rti_exp.types import Task

HARD20 = "hard20"
ALL = "all"
HELDOUT_EVERY = 4


def read_folders(root: Path) -> list[Task]:
    """The tasks that can run here, by id; each fourth is held out.

    Raises:
        ValueError: there are none, or a task.yaml cannot be read; the message names the file.
    """
    files = sorted(root.glob("tasks/*/task.yaml"))
    if not files or not (root / "src" / "claw_eval").is_dir():
        raise ValueError(
            f"env.root={str(root)!r}: must be a checkout of Claw-Eval, with tasks/*/task.yaml and src/claw_eval"
        )
    nodes = [(path, _read(path)) for path in files]
    usable = [(path, node) for path, node in nodes if why_not(node) is None]
    if not usable:
        raise ValueError(
            f"env.root={str(root)!r}: none of its {len(files)} tasks can run here ({why_not(nodes[0][1])})"
        )
    return [_task(path, node, number) for number, (path, node) in enumerate(usable)]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if (
        not isinstance(node, dict)
        or not isinstance(node.get("task_id"), str)
        or not isinstance(node.get("prompt"), dict)
    ):
        raise ValueError(f"{path}: must be a task with task_id and prompt")
    return node


def why_not(node: Mapping[str, Any]) -> str | None:
    """The reason why a task cannot run here (a user model, attachments, a sandbox, the web); None if it can."""
    tools = {tool["name"] for tool in node.get("tools") or ()}
    served = {endpoint["tool_name"] for endpoint in node.get("tool_endpoints") or ()}
    services = node.get("services") or ()
    if (node.get("user_agent") or {}).get("enabled"):
        return "it needs a simulated user"
    if node["prompt"].get("attachments"):
        return "it has attachments"
    if not services or not tools or tools - served:
        return "its tools are not those of mock services"
    if any(service["name"].startswith("web_real") for service in services):
        return "it needs the web"
    snapshots = ("sandbox_grader_files", "env_snapshot_files", "env_snapshot_commands", "local_grader_files")
    return "its grader looks into a sandbox" if any(node.get(name) for name in snapshots) else None


def _task(path: Path, node: Mapping[str, Any], number: int) -> Task:
    return Task(
        id=node["task_id"],
        family=f"claw_{node.get('category') or 'task'}",
        split="heldout" if number % HELDOUT_EVERY == HELDOUT_EVERY - 1 else "train",
        payload={"folder": path.parent.name, "node": json.loads(json.dumps(node, default=str))},  # YAML has dates
    )


def selected(tasks: Sequence[Task], selection: Sequence[str]) -> list[Task]:
    """`[all]`, `[hard20]`, or ids.

    hard20 is a guess: the paper names a "Hard20" without listing it. Here it is the twenty English tasks of
    difficulty "hard" that can run here with the most services, ties by id; all are held out.

    Raises:
        ValueError: an id that is not there, or fewer than twenty hard tasks.
    """
    selected = list(selection)
    if selected == [ALL]:
        return list(tasks)
    if selected == [HARD20]:
        hard = [task for task in tasks if task.payload["node"].get("difficulty") == "hard" and not _chinese(task)]
        if len(hard) < 20:
            raise ValueError(f"env.selection=[hard20]: needs twenty hard English tasks, the checkout has {len(hard)}")
        hard.sort(key=lambda task: (-len(task.payload["node"]["services"]), task.id))
        return [_heldout(task) for task in hard[:20]]
    there = {task.id: task for task in tasks}
    missing = [name for name in selected if name not in there]
    if missing or not selected:
        raise ValueError(f"env.selection={selected}: must be [all], [hard20], or ids of tasks; unknown: {missing}")
    return [there[name] for name in selected]


def _heldout(task: Task) -> Task:
    return Task(id=task.id, family=task.family, split="heldout", payload=task.payload)


def _chinese(task: Task) -> bool:
    return task.payload["node"]["prompt"].get("language", "zh") == "zh"


def script_of(command: str, root: Path) -> Path:
    """The Python file that a service's command starts.

    Raises:
        ValueError: another kind of command, or a file outside the checkout.
    """
    parts = shlex.split(command)
    if len(parts) != 2 or parts[0] not in ("python", "python3"):
        raise ValueError(f"service command {command!r}: must be python and a file")
    script = (root / parts[1]).resolve()
    if not script.is_relative_to(root.resolve()) or not script.is_file():
        raise ValueError(f"service command {command!r}: must name a file of the checkout")
    return script
