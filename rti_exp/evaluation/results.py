"""An evaluation on disk: every rollout a line, so that it goes on where it was interrupted; and its numbers.

A folder holds `about.json` (what is evaluated), `rollouts-*.jsonl` (a line a rollout), and when it is whole
`tasks.jsonl` (a line a task) and `result.json`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rti_exp.config.settings import SettingsError
from rti_exp.runs.json_lines import LineFile, plain, read_lines, to_json, write_atomically
from rti_exp.types import Task, Trajectory

Row = Mapping[str, Any]


class EvaluationFolder:
    """The rollouts of one evaluation; several processes, each with a shard of its own, may write at once.

    Args:
        about: what is evaluated, as plain data: the folder of another evaluation is refused.
        shard: (number, of how many).
    Raises:
        SettingsError: the folder is another evaluation's, or another process writes this shard.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], shard: tuple[int, int] = (0, 1)) -> None:
        self.path = path
        self.shard = shard
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"out={str(path)!r}: cannot be made ({error.strerror})") from error
        told = json.loads(to_json(about))
        stored = _read_json(path / "about.json")
        if stored is not None and stored != told:
            differing = sorted(key for key in {*stored, *told} if stored.get(key) != told.get(key))
            raise SettingsError(f"out={str(path)!r}: holds another evaluation; it differs in {', '.join(differing)}")
        write_atomically(path / "about.json", json.dumps(told, indent=1, ensure_ascii=False) + "\n")

    @contextmanager
    def writing(self) -> Any:
        """A function that appends rows, each on disk before it returns."""
        name = f"rollouts-{self.shard[0]}of{self.shard[1]}"
        lock = os.open(self.path / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise SettingsError(f"out={str(self.path)!r}: another process is evaluating there") from error
            lines = LineFile(self.path / f"{name}.jsonl")
            try:
                yield lines.append
            finally:
                lines.close()
        finally:
            os.close(lock)

    def rows(self) -> dict[tuple[str, int], Row]:
        """By task and sample; of a rollout that was done again after an infrastructure failure, the last that counts.

        Raises:
            ValueError: a file is damaged; the message names file and line.
        """
        found: dict[tuple[str, int], Row] = {}
        for path in sorted(self.path.glob("rollouts-*.jsonl")):
            for row in read_lines(path):
                place = (str(row["task_id"]), int(row["sample"]))
                if place not in found or not counts(found[place]):
                    found[place] = row
        return found

    def finish(self, result: Row) -> None:
        """Write the numbers down, with a line for each task."""
        lines = "".join(to_json(row) + "\n" for row in result["tasks"])
        write_atomically(self.path / "tasks.jsonl", lines)
        write_atomically(self.path / "result.json", json.dumps(plain(result), indent=1, allow_nan=False) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SettingsError(f"{path} is damaged ({error}); move its folder away") from error


def counts(row: Row) -> bool:
    """Whether a rollout is none that the infrastructure lost."""
    return row["status"] != "infrastructure_failure"


def rollout_row(task: Task, trajectory: Trajectory) -> dict[str, Any]:
    """A rollout as one line."""
    return {
        "task_id": task.id,
        "family": task.family,
        "sample": trajectory.member,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "turns": len(trajectory.turns),
        "tokens": trajectory.generated_tokens,
        "error": trajectory.error,
        "messages": [
            {
                "role": message.role,
                "content": message.content,
                **({"tool_calls": [plain(call) for call in message.tool_calls]} if message.tool_calls else {}),
                **({"thinking": message.thinking} if message.thinking else {}),
            }
            for turn in trajectory.turns
            for message in (turn.message, *turn.observations)
        ],
    }


def too_few_tasks(wanted: int, there: int) -> str | None:
    """A warning, if `eval.tasks` asks for more held-out tasks than there are."""
    if wanted <= there:
        return None
    return f"warning: eval.tasks={wanted}, but there are {there} held-out tasks; all of them are taken"


def missing(tasks: Sequence[Task], samples: int, rows: Mapping[tuple[str, int], Row]) -> dict[str, list[int]]:
    """The samples that are still to be rolled out, by task, for tasks that lack some."""
    lacking = {
        task.id: [
            number for number in range(samples) if (task.id, number) not in rows or not counts(rows[task.id, number])
        ]
        for task in tasks
    }
    return {task: numbers for task, numbers in lacking.items() if numbers}


def task_rows(tasks: Iterable[Task], samples: int, rows: Mapping[tuple[str, int], Row], threshold: float) -> list[Row]:
    """For each task: valid samples, successes, mean reward, infrastructure failures."""
    made: list[Row] = []
    for task in tasks:
        own = [rows[task.id, number] for number in range(samples) if (task.id, number) in rows]
        valid = [row for row in own if counts(row)]
        rewards = [float(row["reward"]) for row in valid]
        made.append(
            {
                "task_id": task.id,
                "family": task.family,
                "samples": len(valid),
                "successes": sum(reward >= threshold for reward in rewards),
                "reward_mean": sum(rewards) / len(rewards) if rewards else None,
                "infrastructure_failures": len(own) - len(valid),
            }
        )
    return made


def estimates(tasks: Sequence[Row], ks: Sequence[int]) -> dict[str, dict[str, float | int | None]]:
    """pass@k and pass^k (all of k succeed) with 95% intervals over tasks; tasks with fewer samples are left out.

    Returns:
        by "pass@K" and "pass^K": value, low, high (None without a task) and the number of tasks.
    """
    import numpy as np

    from rti_exp.analysis.statistics import Scores, estimate
    from rti_exp.objective.passk import pass_at_k, pass_hat_k

    made: dict[str, dict[str, float | int | None]] = {}
    for name, score in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
        for k in ks:
            enough = [task for task in tasks if task["samples"] >= k]
            values = [score(task["samples"], task["successes"], k) for task in enough]
            names = tuple(task["task_id"] for task in enough)
            found = estimate(Scores(seeds=(0,), tasks=names, values_SN=np.array([values], dtype=float)))
            bounds = (found.value, found.low, found.high) if enough else (None, None, None)
            made[f"{name}{k}"] = dict(zip(("value", "low", "high", "tasks"), (*bounds, len(enough)), strict=True))
    return made
