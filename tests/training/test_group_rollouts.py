"""Dynamic sampling and a teacher's members, in whole iterations of a small learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from rti_exp.config.algorithm_settings import LuffySettings
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings, RunSettings
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.objective.luffy import LUFFY
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.teacher_rollouts import TeacherRollouts
from rti_exp.training.iteration import has_signal
from rti_exp.training.learner import RTIModule
from rti_exp.training.tasks import TaskStream
from rti_exp.types import Author, Group
from tests.support.callbacks import Altered, with_trajectories
from tests.support.fakes import GuessWorld, right_texts
from tests.support.training_fakes import (
    RENDERER,
    ROLLOUT,
    CoinWorld,
    acted,
    equal_weights,
    fit,
    groups_of,
    sampled,
    weights,
)

RUN = default_settings(RunSettings, seed=3, max_iterations=1, tasks_per_iteration=2, group_size=4)


def silenced(silent: set[str]) -> Any:
    """All members of these tasks' groups get one reward; the first member of every other succeeds alone."""

    def change(groups: Sequence[Group], iteration: int) -> list[Group]:
        changed: list[Group] = []
        for group in groups:
            quiet = group.task.id in silent
            changed += with_trajectories(
                [group],
                lambda one, quiet=quiet: dataclasses.replace(one, reward=0.0 if quiet else float(one.member == 0)),
            )
        return changed

    return change


def learner(silent: set[str], refills: int, *, run: RunSettings = RUN, beta: float = 0.0) -> RTIModule:
    settings = default_settings(AlgorithmSettings, learning_rate=1e-3, dynamic_sampling=refills, beta=beta)
    module = sampled(run=run, settings=settings)
    module.rollouts.collector = Altered(module.rollouts.collector, silenced(silent))
    return module


def drawn(module: RTIModule) -> list[str]:
    return [group.task.id for group in groups_of(module)]


def stream() -> TaskStream:
    return TaskStream(CoinWorld().tasks("train"), tasks_per_iteration=2, seed=3)


BEGUN = [task.id for task in stream().iteration(1)]
FRESH = [task.id for task in stream().fresh(1)]


def test_fresh_tasks_are_all_others_in_an_order_of_their_own() -> None:
    assert sorted(BEGUN + FRESH) == sorted(task.id for task in CoinWorld().tasks("train"))
    assert [task.id for task in stream().fresh(1)] == FRESH
    backward = TaskStream(CoinWorld().tasks("train")[::-1], tasks_per_iteration=2, seed=3)
    assert [task.id for task in backward.fresh(1)] == FRESH
    assert len({tuple(task.id for task in stream().fresh(iteration)) for iteration in range(1, 9)}) > 4


def test_groups_without_signal_are_made_up_for() -> None:
    module = fit(learner({BEGUN[0]}, 3))
    assert drawn(module) == [*BEGUN, FRESH[0]]
    assert module.last_metrics["groups/refills"] == 1
    assert module.last_metrics["groups/signal"] == pytest.approx(2 / 3)


def test_refills_without_signal_are_made_up_for_in_the_next_round() -> None:
    module = fit(learner({*BEGUN, FRESH[1], FRESH[2]}, 3))
    assert drawn(module) == [*BEGUN, *FRESH[:4]]
    assert sum(has_signal(module.algorithm.advantages(group)) for group in groups_of(module)) == 2


def test_rounds_are_bounded_and_so_are_the_tasks() -> None:
    everything = {*BEGUN, *FRESH}
    assert drawn(fit(learner(everything, 0))) == BEGUN
    assert drawn(fit(learner(everything, 1))) == [*BEGUN, *FRESH[:2]]
    assert drawn(fit(learner(everything, 9))) == [*BEGUN, *FRESH]


def test_an_iteration_with_signal_needs_no_refill() -> None:
    first, second = fit(learner(set(), 0)), fit(learner(set(), 3))
    assert equal_weights(weights(first), weights(second))
    assert drawn(second) == BEGUN


def test_tokens_of_dropped_groups_are_spent() -> None:
    module = fit(learner({BEGUN[0]}, 3))
    generated = sum(one.generated_tokens for group in groups_of(module) for one in group.sampled)
    assert module.last_metrics["tokens/generated"] == generated == module.budget.tokens_spent
    trained = sum(one.generated_tokens for group in groups_of(module)[1:] for one in group.sampled)
    assert module.last_metrics["tokens/trained"] == trained


def test_a_dropped_group_has_no_kl_term_either() -> None:
    module = fit(learner({BEGUN[0]}, 3, beta=0.1))
    kept = sum(one.generated_tokens for group in groups_of(module)[1:] for one in group.sampled)
    assert module.last_metrics["tokens/trained"] == kept
    # The reference has scored what was trained.
    assert module.last_metrics["tokens/scored"] == kept
    assert module.budget.tokens_spent == kept + (module.last_metrics["tokens/generated"] or 0)


def test_interventions_see_refills_too() -> None:
    settings = default_settings(AlgorithmSettings, learning_rate=1e-3, dynamic_sampling=2)
    run = dataclasses.replace(RUN, tasks_per_iteration=1)
    module = fit(acted(run=run, settings=settings))
    assert len(groups_of(module)) >= 1
    assert module.last_metrics["groups/signal"] == 1 / len(groups_of(module))


def guided(*, n_prefix: int = 1) -> RTIModule:
    settings = default_settings(LuffySettings, learning_rate=1e-3, n_prefix=n_prefix)
    module = acted(run=RUN, settings=settings, algorithm=LUFFY(settings), intervene=False)
    engine = ScriptedEngine(_right, RENDERER)
    teacher = Collector(
        environment=GuessWorld(), engine=engine, renderer=RENDERER, settings=ROLLOUT, seed=3, author=Author.TEACHER
    )
    policy: Any = module.rollouts.collector
    module.rollouts.teacher = TeacherRollouts(teacher=teacher, policy=policy, members=n_prefix, prefix_fraction=1.0)
    module.rollouts.teacher_engine = engine
    return module


def _right(prompt: str, seed: int) -> str:
    task = next(one for one in GuessWorld().tasks("train") if f"box {one.payload['box']}<" in prompt)
    return right_texts(task)[prompt.count("<|tool|>")]


def test_a_teacher_takes_places_of_the_group() -> None:
    module = guided(n_prefix=2)
    before = weights(module)
    fit(module)
    for group in groups_of(module):
        taught = [one.has_turn_by(Author.TEACHER) for one in group.sampled]
        assert taught == [False, False, True, True]
    assert module.last_metrics["reward/teacher_mean"] == 1.0
    own = [one.reward for group in groups_of(module) for one in group.sampled[:2]]
    assert module.last_metrics["reward/mean"] == module.last_metrics["pass@1/before"] == sum(own) / len(own)
    everything = sum(one.generated_tokens for group in groups_of(module) for one in group.sampled)
    assert module.last_metrics["tokens/generated"] == everything == module.budget.tokens_spent
    assert not equal_weights(before, weights(module))
