"""A run with a token budget ends at the iteration that spends it, and resumes like any other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings, EvaluationSettings, RunSettings
from rti_exp.runs import Run
from rti_exp.training.callbacks import training_callbacks
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import is_timing
from tests.support.callbacks import StopAfterRows, StopBefore, Stopped, lines
from tests.support.training_fakes import RENDERER, acted, equal_weights, fit, sampled, weights

MANY = default_settings(RunSettings, seed=3, max_iterations=9, tasks_per_iteration=2, group_size=4)
KEY = "0123456789ab"


def learner(budget: float) -> RTIModule:
    settings = default_settings(AlgorithmSettings, learning_rate=1e-3, dynamic_sampling=1)
    return sampled(run=MANY, settings=settings, tokens=budget)


def session(directory: Path, module: RTIModule, stop: Any = None, *, evaluates: bool = True) -> RTIModule:
    run = Run(directory, key=KEY, study="study")
    callbacks = training_callbacks(
        run=run,
        heldout=module.rollouts.collector.environment.tasks("heldout"),  # pyright: ignore[reportAttributeAccessIssue]
        evaluation=default_settings(EvaluationSettings, every=0, tasks=2 if evaluates else 0, samples=2),
        decode=RENDERER.text,
        recorder_every=2,
        checkpoint=IterationCheckpoint(run=run, run_key=KEY, checkpoints=run.checkpoints),
    )
    if stop is not None:
        callbacks.insert(2 if isinstance(stop, StopAfterRows) else 3, stop)
    try:
        return fit(module, callbacks)
    finally:
        run.close()


def rows(directory: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not is_timing(name)} for row in lines(directory, "metrics.jsonl")
    ]


def spent(directory: Path) -> list[int]:
    return [row["tokens/generated"] for row in rows(directory) if row["kind"] == "train"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RTIModule, float]:
    """A run whose budget is spent in its third iteration."""
    free = tmp_path_factory.mktemp("free")
    session(free, learner(math.inf))
    budget = sum(spent(free)[:2]) + 1
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, session(directory, learner(budget)), budget


def test_training_ends_where_the_budget_is_spent_and_is_evaluated_there(
    unbroken: tuple[Path, RTIModule, float],
) -> None:
    directory, module, budget = unbroken
    assert [(row["kind"], row["iteration"]) for row in rows(directory)] == [
        ("eval", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("eval", 3),
    ]
    assert sum(spent(directory)[:2]) < budget <= sum(spent(directory)) == module.budget.tokens_spent


def test_a_budget_is_spent_exactly_at_its_last_token(tmp_path: Path, unbroken: tuple[Path, RTIModule, float]) -> None:
    assert session(tmp_path, learner(unbroken[2] - 1)).iteration == 2


@pytest.mark.parametrize("stop", [StopBefore(2), StopAfterRows(2), StopBefore(3), StopAfterRows(3)])
def test_a_run_that_broke_off_ends_like_the_unbroken_one(
    tmp_path: Path, unbroken: tuple[Path, RTIModule, float], stop: Any
) -> None:
    directory, module, budget = unbroken
    with pytest.raises(Stopped):
        session(tmp_path, learner(budget), stop)
    resumed = session(tmp_path, learner(budget))
    assert (resumed.iteration, resumed.budget.tokens_spent) == (3, module.budget.tokens_spent)
    assert rows(tmp_path) == rows(directory)
    assert equal_weights(weights(resumed), weights(module))


def test_a_run_that_had_spent_its_budget_does_nothing_more(
    tmp_path: Path, unbroken: tuple[Path, RTIModule, float]
) -> None:
    _, module, budget = unbroken
    session(tmp_path, learner(budget))
    before = rows(tmp_path)
    again = session(tmp_path, learner(budget))
    assert again.iteration == 3
    assert rows(tmp_path) == before
    assert equal_weights(weights(again), weights(module))


def intervened(directory: Path, accepted_budget: float, stop: Any = None) -> RTIModule:
    return session(directory, acted(run=MANY, accepted=accepted_budget), stop, evaluates=False)


def funnel(directory: Path) -> list[tuple[int, int]]:
    trained = [row for row in rows(directory) if row["kind"] == "train"]
    return [(row["funnel/attempts"], row["funnel/accepted"]) for row in trained]


def test_interventions_stop_after_the_iteration_that_spends_the_accepted_budget(tmp_path: Path) -> None:
    free, limited = tmp_path / "free", tmp_path / "limited"
    intervened(free, math.inf)
    accepted = [count for _, count in funnel(free)]
    assert accepted[1] > 1
    assert sum(accepted[2:]) > 0
    module = intervened(limited, accepted[0] + 1)
    assert funnel(limited) == funnel(free)[:2] + [(0, 0)] * 7
    assert module.budget.accepted == accepted[0] + accepted[1]


def test_the_accepted_budget_survives_a_resume(tmp_path: Path) -> None:
    unbroken = intervened(tmp_path / "unbroken", 3)
    with pytest.raises(Stopped):
        intervened(tmp_path / "broken", 3, StopBefore(4))
    resumed = intervened(tmp_path / "broken", 3)
    assert resumed.budget.accepted == unbroken.budget.accepted >= 3
    assert rows(tmp_path / "broken") == rows(tmp_path / "unbroken")
    assert equal_weights(weights(resumed), weights(unbroken))
