"""The numbers of an evaluation: successes by task, pass@k and pass^k with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rti_exp.types import Task

Row = Mapping[str, Any]


def is_valid(row: Row) -> bool:
    """Whether a rollout is not an infrastructure failure."""
    return row["status"] != "infrastructure_failure"


def too_few_tasks(requested: int, available: int) -> str | None:
    """A warning if `eval.tasks` asks for more held-out tasks than there are."""
    if requested <= available:
        return None
    return f"warning: eval.tasks={requested}, but there are only {available} held-out tasks; all of them are used"


def missing_samples(tasks: Sequence[Task], samples: int, rows: Mapping[tuple[str, int], Row]) -> dict[str, list[int]]:
    """The samples without a valid rollout, by task, for tasks that lack some."""
    missing = {
        task.id: [
            sample for sample in range(samples) if (task.id, sample) not in rows or not is_valid(rows[task.id, sample])
        ]
        for task in tasks
    }
    return {task: numbers for task, numbers in missing.items() if numbers}


def task_rows(tasks: Iterable[Task], samples: int, rows: Mapping[tuple[str, int], Row], threshold: float) -> list[Row]:
    """For each task: valid samples, successes, mean reward, infrastructure failures."""
    by_task: list[Row] = []
    for task in tasks:
        sampled = [rows[task.id, sample] for sample in range(samples) if (task.id, sample) in rows]
        rewards = [float(row["reward"]) for row in sampled if is_valid(row)]
        by_task.append(
            {
                "task_id": task.id,
                "family": task.family,
                "samples": len(rewards),
                "successes": sum(reward >= threshold for reward in rewards),
                "reward_mean": sum(rewards) / len(rewards) if rewards else None,
                "infrastructure_failures": len(sampled) - len(rewards),
            }
        )
    return by_task


def estimates(tasks: Sequence[Row], ks: Sequence[int]) -> dict[str, dict[str, float | int | None]]:
    """pass@k and pass^k (all of k succeed) with 95% intervals over tasks. Tasks with fewer samples are excluded.

    Returns:
        By "pass@K" and "pass^K": value, low, high (None without a task) and the number of tasks.
    """
    import numpy as np

    from rti_exp.analysis.statistics import Scores, estimate
    from rti_exp.objective.passk import pass_at_k, pass_hat_k

    results: dict[str, dict[str, float | int | None]] = {}
    for name, score in (("pass@", pass_at_k), ("pass^", pass_hat_k)):
        for k in ks:
            scored = [task for task in tasks if task["samples"] >= k]
            if not scored:
                results[f"{name}{k}"] = {"value": None, "low": None, "high": None, "tasks": 0}
                continue
            values = np.array([[score(task["samples"], task["successes"], k) for task in scored]], dtype=float)
            names = tuple(task["task_id"] for task in scored)
            mean = estimate(Scores(seeds=(0,), tasks=names, values_SN=values))
            results[f"{name}{k}"] = {"value": mean.value, "low": mean.low, "high": mean.high, "tasks": len(scored)}
    return results


def result_row(
    tasks: Sequence[Task], samples: int, rows: Mapping[tuple[str, int], Row], *, threshold: float, iteration: int
) -> dict[str, Any]:
    """The content of `result.json`."""
    by_task = task_rows(tasks, samples, rows, threshold)
    powers = sorted({1, samples, *(2**power for power in range(samples.bit_length()) if 2**power < samples)})
    sampled = [rows[task.id, sample] for task in tasks for sample in range(samples) if (task.id, sample) in rows]
    return {
        "iteration": iteration,
        "rollouts": len(sampled),
        "wanted": len(tasks) * samples,
        "infrastructure_failures": sum(not is_valid(row) for row in sampled),
        "truncated": sum(row["status"] == "truncated" for row in sampled),
        "estimates": estimates(by_task, powers),
        "tasks": by_task,
    }
