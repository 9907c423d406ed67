"""One iteration of each algorithm with the embedded policy and teacher, from config to checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import read_status
from rti_exp.sweep import job

Composed = Callable[..., DictConfig]
SMALL = (
    "debug=one_iteration",
    "logger=none",
    "tasks_per_iteration=4",
    "env.families=[nav_hard,tel_hard,ret_easy]",
    "env.heldout_tasks=2",
    "probe.cases=2",
)


@pytest.fixture
def iteration(composed: Composed, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*overrides: str) -> dict[str, Any]:
        """The train row of a one-iteration run, with its rollouts under "rollouts"."""
        config = composed(*SMALL, f"runs_root={tmp_path}", *overrides)
        assert job.run_job(config) == 0
        directory = check(config).directory("debug")
        status = read_status(directory)
        assert status is not None
        assert (status["state"], status["iterations_done"]) == ("done", 1)
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        kinds = [(row["kind"], row["iteration"]) for row in rows]
        assert sorted(kinds) == [("eval", 0), ("eval", 1), ("probe", 0), ("probe", 1), ("train", 1)]
        row = next(row for row in rows if row["kind"] == "train")
        spent = sum(row[f"tokens/{name}"] for name in ("generated", "scored", "role_generated", "role_scored"))
        assert status["compute"]["generated_tokens"] + status["compute"]["scored_tokens"] == spent
        rollouts = [json.loads(line) for line in (directory / "rollouts.jsonl").read_text().splitlines()]
        return {**row, "rollouts": rollouts}

    return run


def authors(row: dict[str, Any]) -> list[list[set[int]]]:
    """For each group and member, who wrote its trained tokens."""
    return [
        [
            {author for author, trained in zip(one["authors"], one["mask"], strict=True) if trained}
            for one in group["trajectories"]
        ]
        for group in row["rollouts"]
    ]


@pytest.mark.slow
def test_luffy(iteration: Callable[..., dict[str, Any]]) -> None:
    row = iteration("algorithm=luffy")
    assert authors(row) == [[{1}, {1}, {1}, {3}]] * 4
    assert row["reward/teacher_mean"] > row["reward/mean"]
    assert row["funnel/attempts"] == 0
    assert row["updates/steps"] > 0


@pytest.mark.slow
def test_luffy_with_half_a_trajectory(iteration: Callable[..., dict[str, Any]]) -> None:
    row = iteration("algorithm=luffy", "algorithm.prefix_fraction=0.5", "algorithm.n_prefix=2")
    assert authors(row) == [[{1}, {1}, {1, 3}, {1, 3}]] * 4


@pytest.mark.slow
def test_luffy_without_a_teacher_is_grpo(iteration: Callable[..., dict[str, Any]]) -> None:
    plain = ("algorithm.clip_low=0.2", "algorithm.clip_high=0.28", "algorithm.normalize_std=true")
    luffy = iteration("algorithm=luffy", "algorithm.n_prefix=0", *plain)
    grpo = iteration("algorithm=grpo", "corrector=none")
    timed = {name for name in luffy if name.startswith("time/")} | {"tokens/per_second"}
    assert {name: luffy[name] for name in luffy if name not in timed} == {
        name: grpo[name] for name in grpo if name not in timed
    }


@pytest.mark.slow
def test_on_policy_distillation(iteration: Callable[..., dict[str, Any]]) -> None:
    row = iteration("algorithm=opd")
    assert authors(row) == [[{1}] * 4] * 4
    assert row["loss/kl"] > 0
    assert row["groups/signal"] == 1.0
    assert row["tokens/scored"] == row["tokens/trained"] == row["tokens/generated"]


@pytest.mark.slow
def test_sft(iteration: Callable[..., dict[str, Any]]) -> None:
    row = iteration("algorithm=sft", "verifier=none", "gate.delta=inf", "intervention.corrections=8")
    assert row["funnel/accepted"] > 0
    advantages = [one["advantage"] for group in row["rollouts"] for one in group["trajectories"]]
    assert advantages.count(1.0) == row["funnel/accepted"]
    assert row["updates/steps"] > 0


@pytest.mark.slow
def test_dynamic_sampling(iteration: Callable[..., dict[str, Any]]) -> None:
    row = iteration("experiment=dynamic_sampling", "algorithm.dynamic_sampling=2")
    without = iteration("experiment=grpo")
    assert without["groups/signal"] < 1
    assert row["groups/refills"] > 0
    assert len(row["rollouts"]) == 4 + row["groups/refills"]
    assert row["tokens/generated"] > without["tokens/generated"]
