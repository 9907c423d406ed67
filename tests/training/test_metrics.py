from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

import pytest

from rti_exp.training.iteration import Iteration, Stopwatch, UpdateStats
from rti_exp.training.metrics import is_timing, iteration_metrics, over_ranks, success_count
from rti_exp.types import Author, Correction, Evidence, Group, Intervention, Message, Outcome, Status, Verdict
from tests.support.trajectories import group, trajectory, turn

STEP = turn([1], [2])


def member(number: int, reward: float, status: Status | None = None):
    return trajectory([STEP], member=number, reward=reward, status=status)


def attempt(outcome: Outcome, perplexity: float | None = None, weights: tuple[float, ...] = ()) -> Intervention:
    return Intervention(
        id="attempt",
        task_id="task",
        family="family",
        parent=0,
        sample=0,
        verdict=Verdict(kind="harmful", step=0),
        outcome=outcome,
        evidence=Evidence(level="none"),
        perplexity=perplexity,
        weights=weights,
    )


MIXED = group([member(0, 1.0), member(1, 0.0), member(2, 0.5, Status.TRUNCATED), member(3, math.nan)])
RESCUED = group(
    [member(0, 0.0), member(1, 0.0)],
    [member(0, 0.0), trajectory([STEP], member=1, reward=1.0, fork=(1, 0))],
    interventions=[
        attempt(Outcome.ACCEPTED, 2.0, (1.5, 0.5)),
        attempt(Outcome.TOO_PERPLEXING, 9.0, (1.2, 1.2)),
        attempt(Outcome.TOO_PERPLEXING, 40.0),
        attempt(Outcome.NO_FAULT),
    ],
)
BROKEN = group([member(0, math.nan), member(1, math.nan)])
UPDATE = UpdateStats(
    steps=2,
    trained_tokens=12,
    policy_loss=-0.25,
    clip_share=0.1,
    ratio_max=1.3,
    entropy=2.0,
    gradient_norm=0.7,
)


def iteration(groups: list[Group], advantages: list[list[float]], **fields: Any) -> Iteration:
    samples = [[None] * len(values) for values in advantages]
    return Iteration(number=1, groups=groups, advantages=advantages, samples=samples, **fields)


ITERATION = iteration(
    [MIXED, RESCUED, BROKEN],
    [[1.0, -0.5, -0.5, 0.0], [-0.5, 0.5], [0.0, 0.0]],
    update=UPDATE,
    tokens={"generated": 60, "scored": 1, "role_generated": 40, "role_scored": 30},
    seconds={"rollout": 1.0, "roles": 0.5, "score": 0.25, "update": 0.125, "iteration": 4.0},
)


def test_all_metrics_of_an_iteration() -> None:
    counts = dict.fromkeys((f"funnel/{outcome}" for outcome in Outcome), 0)
    counts |= {"funnel/accepted": 1, "funnel/too_perplexing": 2, "funnel/no_fault": 1}
    assert iteration_metrics(ITERATION, success_threshold=1.0) == {
        "reward/mean": 1.5 / 5,
        "reward/teacher_mean": None,
        "pass@1/before": pytest.approx((1 / 3 + 0) / 2),
        "pass@G/before": 0.5,
        "groups/all_failed": pytest.approx(1 / 3),
        "groups/signal": pytest.approx(2 / 3),
        "groups/refills": 0,
        "trajectories/valid": 5,
        "trajectories/truncated": 1,
        "trajectories/infrastructure_failure": 3,
        "funnel/attempts": 4,
        **counts,
        "correction/perplexity_mean": 17.0,
        "correction/perplexity_median": 9.0,
        "correction/accepted_perplexity_mean": 2.0,
        "correction/rho_mean": 1.0,
        "correction/reencoded": 0,
        "correction/rho_std": 0.5,
        "loss/policy": -0.25,
        "loss/kl": None,
        "loss/clip_share": 0.1,
        "loss/ratio_max": 1.3,
        "policy/entropy": 2.0,
        "policy/gradient_norm": 0.7,
        "updates/steps": 2,
        "tokens/generated": 60,
        "tokens/scored": 1,
        "tokens/trained": 12,
        "tokens/role_generated": 40,
        "tokens/role_scored": 30,
        "tokens/per_second": 25.0,
        "time/rollout": 1.0,
        "time/roles": 0.5,
        "time/score": 0.25,
        "time/update": 0.125,
        "time/iteration": 4.0,
    }


def test_metrics_without_value_are_none_and_names_stay() -> None:
    nothing = iteration_metrics(iteration([BROKEN], [[0.0, 0.0]]), success_threshold=1)
    assert nothing.keys() == iteration_metrics(ITERATION, success_threshold=1.0).keys()
    without = {name for name, value in nothing.items() if value is None}
    assert without == {
        "reward/mean",
        "reward/teacher_mean",
        "pass@1/before",
        "pass@G/before",
        "correction/perplexity_mean",
        "correction/perplexity_median",
        "correction/accepted_perplexity_mean",
        "correction/rho_mean",
        "correction/rho_std",
        "loss/policy",
        "loss/kl",
        "loss/clip_share",
        "loss/ratio_max",
        "policy/entropy",
        "policy/gradient_norm",
        "tokens/per_second",
    }
    assert nothing["groups/all_failed"] == 0.0


def test_tokens_are_summed_over_ranks_and_the_slowest_rank_gives_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    second = ({"generated": 7, "role_scored": 2}, {"rollout": 2.0})
    monkeypatch.setattr("rti_exp.training.metrics.gather_from_ranks", lambda item: [item, second])
    assert over_ranks({"generated": 5}, {"rollout": 1.0, "roles": 3.0}) == (
        {"generated": 12, "role_scored": 2},
        {"rollout": 2.0, "roles": 3.0},
    )


def test_success_threshold() -> None:
    assert success_count(MIXED.sampled, 1.0) == (3, 1)
    assert success_count(MIXED.sampled, 0.5) == (3, 2)


def test_infinite_perplexity_shows_in_the_mean_and_not_in_the_median() -> None:
    one = group([member(0, 0.0)], interventions=[attempt(Outcome.TOO_PERPLEXING, p) for p in (2.0, 4.0, math.inf)])
    metrics = iteration_metrics(iteration([one], [[0.0]]), success_threshold=1.0)
    assert metrics["correction/perplexity_mean"] == math.inf
    assert metrics["correction/perplexity_median"] == statistics.median([2.0, 4.0, math.inf]) == 4.0


def test_only_clock_metrics_may_differ_between_equal_runs() -> None:
    names = iteration_metrics(ITERATION, success_threshold=1.0)
    assert {name for name in names if is_timing(name)} == {
        "tokens/per_second",
        "time/rollout",
        "time/roles",
        "time/score",
        "time/update",
        "time/iteration",
    }


def test_stopwatch_sums_the_uses_of_a_phase_also_of_one_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 10.0, 13.0])
    monkeypatch.setattr("rti_exp.training.iteration.time.perf_counter", lambda: next(clock))
    stopwatch = Stopwatch()
    with stopwatch.time("rollout"):
        pass
    with pytest.raises(ValueError, match="broken"), stopwatch.time("rollout"):
        raise ValueError("broken")
    assert stopwatch.seconds == {"rollout": 5.0}


def test_all_failed_counts_the_policys_own_members() -> None:
    taught = trajectory((turn((1,), (2,), author=Author.TEACHER),), member=2, reward=1.0)
    members = [member(0, 0.0), member(1, 0.0), taught]
    report = iteration([group(members)], [[-0.5, -0.5, 1.0]])
    found = iteration_metrics(report, success_threshold=1.0)
    assert (found["pass@G/before"], found["groups/all_failed"], found["reward/teacher_mean"]) == (0.0, 1.0, 1.0)


def test_reencoded_corrections_are_counted() -> None:
    message = Message(role="assistant", content="x")
    written = [
        Correction(prompt_ids=(1,), action_ids=(2,), text="x", message=message, source="teacher", reencoded=reencoded)
        for reencoded in (True, False, True)
    ]
    records = [dataclasses.replace(attempt(Outcome.UNCHANGED), correction=one) for one in (*written, None)]
    report = iteration([group([member(0, 0.0)], interventions=records)], [[0.0]])
    assert iteration_metrics(report, success_threshold=1.0)["correction/reencoded"] == 2
