"""Synthetic studies with known numbers, written through `rti_exp.runs`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.runs import Run, run_key
from rti_exp.types import Outcome

FAMILIES = ("nav_hard", "ret")
HOSTILE = "</script><script>document.title='owned'</script>[red]bold[/red] `tick` | pipe \x1b[31m $x^2$"


def config(delta: float, seed: int, **extra: Any) -> dict[str, Any]:
    return {
        "seed": seed,
        "study": "synthetic",
        "max_iterations": 2,
        "gate": {"delta": delta, "shadow": False},
        "corrector": {"_target_": "rti_exp.intervention.corrector.PolicyCorrector", "max_tokens": 32},
        **extra,
    }


def evaluation(iteration: int, successes: Mapping[str, int], samples: int = 8) -> dict[str, Any]:
    """An eval row. The family of a task is the part of its id before the slash."""
    tasks = [
        {"task_id": task, "family": task.partition("/")[0], "samples": samples, "successes": count}
        for task, count in successes.items()
    ]
    mean = sum(successes.values()) / (samples * len(successes))
    return {"kind": "eval", "iteration": iteration, "split": "heldout", "pass@1": mean, "pass@8": None, "tasks": tasks}


def train(iteration: int, outcomes: Mapping[str, int] | None = None, **extra: float) -> dict[str, Any]:
    counts = {outcome.value: 0 for outcome in Outcome} | dict(outcomes or {})
    return {
        "kind": "train",
        "iteration": iteration,
        "reward/mean": 0.25 * iteration,
        "pass@1/before": 0.2,
        "pass@G/before": 0.5,
        "groups/all_failed": 0.5,
        "correction/accepted_perplexity_mean": math.nan,
        "funnel/attempts": sum(counts.values()),
        **{f"funnel/{name}": count for name, count in counts.items()},
        "tokens/generated": 1000,
        "tokens/role_generated": 100,
        "tokens/scored": 20,
        "tokens/role_scored": 0,
        "tokens/trained": 500,
        "time/iteration": 1.5,
        **extra,
    }


def intervention(iteration: int, outcome: str = "accepted", **extra: Any) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "id": f"{iteration}/nav_hard/0/0/{outcome}",
        "task_id": "nav_hard/0",
        "family": "nav_hard",
        "parent": 0,
        "sample": 0,
        "step": 1,
        "outcome": outcome,
        "reason": "searched without the city",
        "evidence": "the place is in Kyoto",
        "original": '{"name": "search", "arguments": {"query": "Golden Temple"}}',
        "correction": '{"name": "search", "arguments": {"query": "Golden Temple, Kyoto"}}',
        "source": "self",
        "checks": [{"name": "leak", "judge": "policy", "passed": True, "answer": '{"pass": true}'}],
        "perplexity": math.exp(0.75),
        "log_probs": [-0.5, -1.0],
        "calibration_log_probs": [-0.25, -1.0],
        "weights": [1.25, 1.0],
        "state_hash": "ab12",
        "shadow": False,
        "child_reward": 1.0 if outcome == "accepted" else None,
        "error": None,
        "task": "<|user|>Take me to the Golden Temple",
        "history": "<think>hm</think> earlier",
        "after": "the rest",
        **extra,
    }


def write_run(
    study_dir: Path,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    interventions: Sequence[Mapping[str, Any]] = (),
    overrides: Sequence[str] = (),
    state: str = "done",
    error: BaseException | None = None,
) -> Path:
    """One run directory, as a run writes it."""
    directory = study_dir / run_key(settings)
    run = Run.open(
        directory,
        key=directory.name,
        study=study_dir.name,
        config=settings,
        overrides=overrides,
        seed=settings["seed"],
    )
    for row in rows:
        run.append_metrics(row)
    run.append_interventions(interventions)
    if state != "running":
        run.finish(state, error)
    run.close()
    return directory


def write_arm_run(study_dir: Path, delta: float, seed: int, final: Sequence[int], **extra: Any) -> Path:
    """A run of two iterations and four held-out tasks; `final`: successes out of 8 at the end."""
    tasks = [f"{FAMILIES[place // 2]}/{place % 2}" for place in range(4)]
    outcomes = {} if delta < 1 else {"accepted": 2, "leaked": 3, "too_perplexing": 1}
    rows = [
        evaluation(0, dict.fromkeys(tasks, 1)),
        train(1, outcomes),
        train(2, outcomes),
        evaluation(2, dict(zip(tasks, final, strict=True))),
    ]
    records = [] if delta < 1 else [intervention(1), intervention(2, "leaked"), intervention(2, "too_perplexing")]
    return write_run(
        study_dir,
        config(delta, seed),
        rows,
        interventions=records,
        overrides=[f"gate.delta={'inf' if math.isinf(delta) else delta}", f"seed={seed}"],
        **extra,
    )


def write_delta_study(study_dir: Path) -> Path:
    """Arms 0, 5 and inf with seeds 0 and 1. The inf run of seed 1 failed with a hostile message.

    Final pass@1: delta 0 is .25 and .5 (mean .375), delta 5 is .75 and .875 (.8125), inf .5 (one seed).
    """
    write_arm_run(study_dir, 0, 0, [2, 2, 2, 2])
    write_arm_run(study_dir, 0, 1, [4, 4, 4, 4])
    write_arm_run(study_dir, 5, 0, [6, 6, 6, 6])
    write_arm_run(study_dir, 5, 1, [8, 8, 6, 6])
    write_arm_run(study_dir, math.inf, 0, [8, 0, 0, 8])
    write_run(
        study_dir,
        config(math.inf, 1),
        [evaluation(0, {"nav_hard/0": 8}), train(1, {"accepted": 9})],
        overrides=["gate.delta=inf", "seed=1"],
        state="failed",
        error=RuntimeError(HOSTILE),
    )
    return study_dir


def add_probes(study_dir: Path) -> None:
    """Adds two probe rows to each run: perplexity 4, then 2; for ret 8, then 4."""
    for path in study_dir.glob("*/metrics.jsonl"):
        first = {"kind": "probe", "iteration": 0, "perplexity": 4.0, "perplexity/ret": 8.0}
        rows = [first, {**first, "iteration": 2, "perplexity": 2.0, "perplexity/ret": 4.0}]
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def edit_status(directory: Path, **fields: Any) -> None:
    path = directory / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
