"""Evaluation rows by hand, when evaluation runs, and that it changes nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import EvaluationSettings, RunSettings
from rti_exp.training.callbacks import (
    EvaluationCallback,
    evaluation_row,
    interleaved_families,
)
from rti_exp.types import Task
from tests.support.fakes import GuessWorld
from tests.support.training_fakes import (
    CoinWorld,
    acted,
    equal_weights,
    fit,
    sampled,
    weights,
)
from tests.support.trajectories import group, trajectory, turn

SIX = default_settings(RunSettings, seed=3, max_iterations=6, tasks_per_iteration=2, group_size=4)


def task(number: int, family: str) -> Task:
    return Task(id=f"task_{number}", family=family, split="heldout")


def test_families_are_interleaved_evenly() -> None:
    tasks = [task(0, "a"), task(1, "a"), task(2, "a"), task(3, "b"), task(4, "c"), task(5, "c")]
    assert [one.id for one in interleaved_families(tasks)] == [f"task_{number}" for number in (0, 3, 4, 1, 5, 2)]


def evaluated(number: int, *rewards: float) -> Any:
    one = task(number, "a")
    return group([trajectory([turn([1], [2])], member=i, reward=r, task=one) for i, r in enumerate(rewards)], task=one)


def test_evaluation_row() -> None:
    groups = [
        evaluated(0, 1, 1, 0, 0),
        evaluated(1, 0, 0, 0, 0),
        evaluated(2, 1, math.nan, 0, 0),
        evaluated(3, math.nan),
    ]
    row = evaluation_row(10, groups, 4, 1.0)
    assert row == {
        "kind": "eval",
        "iteration": 10,
        "split": "heldout",
        "pass@1": pytest.approx((0.5 + 0 + 1 / 3) / 3),
        "pass@4": 0.5,
        "infrastructure_failures": 2,
        "tasks": [
            {"task_id": "task_0", "family": "a", "samples": 4, "successes": 2},
            {"task_id": "task_1", "family": "a", "samples": 4, "successes": 0},
            {"task_id": "task_2", "family": "a", "samples": 3, "successes": 1},
            {"task_id": "task_3", "family": "a", "samples": 0, "successes": 0},
        ],
    }


def test_evaluation_row_without_a_valid_sample() -> None:
    row = evaluation_row(0, [evaluated(0, math.nan)], 2, 1.0)
    assert (row["pass@1"], row["pass@2"]) == (None, None)


@pytest.mark.parametrize(
    ("every", "expected"), [(0, [0, 6]), (4, [0, 4, 6]), (3, [0, 3, 6]), (1, [0, 1, 2, 3, 4, 5, 6])]
)
def test_when_it_evaluates(every: int, expected: list[int]) -> None:
    found: list[dict[str, Any]] = []

    class Rows:
        def append_metrics(self, row: dict[str, Any]) -> None:
            found.append(row)

    settings = default_settings(EvaluationSettings, every=every, tasks=1, samples=2)
    callback = EvaluationCallback(run=Rows(), tasks=CoinWorld().tasks("heldout"), settings=settings)  # pyright: ignore
    fit(sampled(run=dataclasses.replace(SIX, tasks_per_iteration=1)), [callback])
    assert [row["iteration"] for row in found] == expected


def test_evaluation_never_changes_training_nor_intervenes() -> None:
    run = dataclasses.replace(SIX, max_iterations=2, tasks_per_iteration=4)
    found: list[dict[str, Any]] = []

    class Rows:
        def append_metrics(self, row: dict[str, Any]) -> None:
            found.append(row)

    # Held-out boxes are unknown to the script; training tasks stand in for them.
    settings = default_settings(EvaluationSettings, every=1, tasks=3, samples=2, temperature=0.5)
    callback = EvaluationCallback(run=Rows(), tasks=GuessWorld().tasks("train"), settings=settings)  # pyright: ignore
    with_evaluation, without = fit(acted(run=run), [callback]), fit(acted(run=run))
    assert equal_weights(weights(with_evaluation), weights(without))
    assert [one["task_id"] for one in found[0]["tasks"]] == ["box_0", "box_1", "box_2"]
    assert all(one["successes"] == 0 for row in found for one in row["tasks"] if one["task_id"] == "box_2")
    assert with_evaluation.engine.synced == [0, 1, 1, 2, 2]  # pyright: ignore[reportAttributeAccessIssue]
    requests = with_evaluation.engine.generate_requests  # pyright: ignore[reportAttributeAccessIssue]
    assert {request.sampling.temperature for request in requests} >= {0.5, 1.0}


def test_evaluation_is_in_the_precision_of_training() -> None:
    found: list[dict[str, Any]] = []
    autocast: list[bool] = []

    class Rows:
        def append_metrics(self, row: dict[str, Any]) -> None:
            found.append(row)

    settings = default_settings(EvaluationSettings, every=1, tasks=2, samples=2)
    callback = EvaluationCallback(run=Rows(), tasks=CoinWorld().tasks("heldout"), settings=settings)  # pyright: ignore
    module = sampled(run=dataclasses.replace(SIX, max_iterations=2))
    module.model.register_forward_pre_hook(lambda *_: autocast.append(torch.is_autocast_enabled("cpu")))
    fit(module, [callback], precision="bf16-mixed")
    assert [row["iteration"] for row in found] == [0, 1, 2]
    assert all(autocast)
