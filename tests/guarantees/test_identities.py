"""The identities that the method must keep, on whole iterations of a small learner."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from rti_exp.config.algorithm_settings import DistillationSettings, LuffySettings
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import (
    AlgorithmSettings,
    GateSettings,
    InterventionSettings,
    Merge,
    ReweightSettings,
    RunSettings,
    Scope,
    Scorer,
    UpdateSettings,
)
from rti_exp.objective.grpo import GRPO
from rti_exp.objective.luffy import LUFFY
from rti_exp.objective.opd import OPD
from rti_exp.objective.sft import SFT
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import is_timing
from rti_exp.types import Trajectory
from tests.support.fakes import tiny_model
from tests.support.training_fakes import (
    ALGORITHM,
    KeepingModule,
    acted,
    equal_weights,
    fit,
    groups_of,
    sampled,
    weights,
)

RUN = default_settings(RunSettings, seed=5, max_iterations=2, tasks_per_iteration=4, group_size=4)


def trained(**options: Any) -> RTIModule:
    return fit(acted(run=RUN, **options))


def untimed(module: RTIModule) -> dict[str, float | None]:
    return {name: value for name, value in module.last_metrics.items() if not is_timing(name)}


def same(first: RTIModule, second: RTIModule) -> bool:
    return equal_weights(weights(first), weights(second)) and untimed(first) == untimed(second)


@pytest.fixture(scope="module")
def grpo() -> RTIModule:
    return trained(intervene=False)


@pytest.mark.parametrize("delta", [0.0, 0.5, math.nextafter(1.0, 0.0)])
def test_delta_below_one_is_grpo_bit_for_bit(grpo: RTIModule, delta: float) -> None:
    assert same(trained(gate=default_settings(GateSettings, delta=delta)), grpo)


def test_corrector_none_is_grpo_bit_for_bit(grpo: RTIModule) -> None:
    assert same(trained(corrector=False), grpo)


def test_a_shadowed_gate_that_never_opens_trains_like_grpo(grpo: RTIModule) -> None:
    shadowed = trained(gate=default_settings(GateSettings, delta=0.0, shadow=True))
    assert shadowed.last_metrics["funnel/too_perplexing"] == 4
    assert equal_weights(weights(shadowed), weights(grpo))


def test_an_open_gate_is_not_grpo(grpo: RTIModule) -> None:
    opened = trained()
    assert opened.last_metrics["funnel/accepted"] == 4
    assert not equal_weights(weights(opened), weights(grpo))


def test_eps_cal_zero_is_reweight_off() -> None:
    off = trained(reweight=default_settings(ReweightSettings, eps_cal=0.5, scorer=Scorer.off))
    assert equal_weights(weights(trained(reweight=default_settings(ReweightSettings, eps_cal=0.0))), weights(off))
    assert not equal_weights(weights(trained(reweight=default_settings(ReweightSettings, eps_cal=0.5))), weights(off))


def test_scopes_differ() -> None:
    scopes = [
        weights(trained(settings=default_settings(AlgorithmSettings, learning_rate=1e-3, scope=scope)))
        for scope in Scope
    ]
    assert not any(equal_weights(scopes[i], scopes[j]) for i, j in [(0, 1), (0, 2), (1, 2)])


def kept_gradients(**changes: Any) -> list[list[torch.Tensor]]:
    settings = default_settings(AlgorithmSettings, gradient_clip=math.inf, **changes)
    model = tiny_model(sharpen=2.0).double()
    run = default_settings(RunSettings, seed=5, max_iterations=1, tasks_per_iteration=4, group_size=4)
    module = fit(acted(run=run, settings=settings, model=model, module_class=KeepingModule), precision="64-true")
    assert isinstance(module, KeepingModule)
    return module.keeper.kept


@pytest.mark.parametrize("micro_batch_tokens", [1, 200, 700])
def test_gradient_does_not_depend_on_the_micro_batch_size(micro_batch_tokens: int) -> None:
    (whole,) = kept_gradients(updates=1, micro_batch_tokens=10**6)
    (parts,) = kept_gradients(updates=1, micro_batch_tokens=micro_batch_tokens)
    assert max(one.abs().max().item() for one in whole) > 1e-3
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_mean_over_the_updates_is_the_gradient_of_a_single_one() -> None:
    (whole,) = kept_gradients(updates=1)
    first, second = kept_gradients(updates=2)
    for one, a, b in zip(whole, first, second, strict=True):
        torch.testing.assert_close(one, (a + b) / 2, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [acted, sampled])
def test_ratio_of_the_first_update_is_one(make: Any) -> None:
    run = default_settings(RunSettings, seed=5, max_iterations=1, tasks_per_iteration=4, group_size=4)
    settings = default_settings(AlgorithmSettings, updates=1, learning_rate=1e-3)
    metrics = fit(make(run=run, settings=settings)).last_metrics
    assert metrics["loss/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["loss/clip_share"] == 0.0


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_ratio_of_the_first_update_is_one_at_each_temperature(temperature: float) -> None:
    """Behaviour and training log-probs are of the distribution that sampled."""
    run = default_settings(RunSettings, seed=5, max_iterations=1, tasks_per_iteration=4, group_size=4)
    settings = default_settings(AlgorithmSettings, updates=1, learning_rate=1e-3)
    module = sampled(run=run, settings=settings, temperature=temperature)
    collector: Any = module.rollouts.collector
    collector.settings = dataclasses.replace(collector.settings, temperature=temperature)
    metrics = fit(module).last_metrics
    assert (metrics["tokens/trained"] or 0) > 0
    assert metrics["loss/ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_ratio_of_a_later_update_is_not_one() -> None:
    assert abs((fit(acted(settings=ALGORITHM)).last_metrics["loss/ratio_max"] or 0.0) - 1) > 1e-3


def test_append_trains_each_token_once() -> None:
    replaced = trained(intervention=default_settings(InterventionSettings, corrections=1, merge=Merge.replace))
    appended = trained(intervention=default_settings(InterventionSettings, corrections=1, merge=Merge.append))
    for module in (replaced, appended):
        nodes = dict(
            node for group in groups_of(module) for trajectory in group.trajectories for node in _nodes(trajectory)
        )
        seen = sum(nodes.values())
        assert module.last_metrics["tokens/trained"] == seen
    assert (appended.last_metrics["tokens/trained"] or 0) > (replaced.last_metrics["tokens/trained"] or 0)


def _nodes(trajectory: Trajectory) -> list[tuple[tuple[str, int, int, bool], int]]:
    """Each turn's identity and length; a child's turns before its fork are its parent's."""
    fork = trajectory.fork
    if fork is None:
        return [
            ((trajectory.task_id, trajectory.member, step, False), len(turn.action_ids))
            for step, turn in enumerate(trajectory.turns)
        ]
    return [
        ((trajectory.task_id, fork.parent, step, step >= fork.step), len(turn.action_ids))
        for step, turn in enumerate(trajectory.turns)
    ]


@pytest.mark.parametrize("changes", [{}, {"normalize_std": True, "clip_low": 0.2, "clip_high": 0.28}])
def test_luffy_without_a_teacher_is_grpo_bit_for_bit(changes: dict[str, Any]) -> None:
    settings = default_settings(LuffySettings, learning_rate=1e-3, micro_batch_tokens=1024, n_prefix=0, **changes)
    luffy = trained(settings=settings, algorithm=LUFFY(settings), intervene=False)
    assert same(luffy, trained(settings=settings, algorithm=GRPO(settings), intervene=False))


def test_luffy_with_grpos_settings_is_the_default_grpo(grpo: RTIModule) -> None:
    common = {name: getattr(ALGORITHM, name) for name in AlgorithmSettings.__dataclass_fields__}
    settings = default_settings(LuffySettings, n_prefix=0, **common)
    assert same(trained(settings=settings, algorithm=LUFFY(settings), intervene=False), grpo)


def test_dynamic_sampling_of_an_iteration_that_cannot_be_refilled_is_grpo(grpo: RTIModule) -> None:
    # All tasks are in each iteration: there is no fresh one.
    settings = dataclasses.replace(ALGORITHM, dynamic_sampling=3)
    assert same(trained(settings=settings, intervene=False), grpo)


def test_distilling_from_oneself_leaves_the_weights_in_the_first_update() -> None:
    settings = default_settings(DistillationSettings, updates=1, learning_rate=1e-3)
    run = default_settings(RunSettings, seed=5, max_iterations=1, tasks_per_iteration=4, group_size=4)
    module = acted(run=run, settings=settings, algorithm=OPD(settings), intervene=False)
    fit(module)
    assert module.last_metrics["loss/kl"] == pytest.approx(0.0, abs=1e-6)
    assert module.last_metrics["policy/gradient_norm"] == pytest.approx(0.0, abs=1e-5)
    assert module.last_metrics["tokens/scored"] == module.last_metrics["tokens/trained"]


def test_distillation_closes_in_on_the_teacher() -> None:
    settings = default_settings(DistillationSettings, updates=1, learning_rate=1e-2)
    teacher = tiny_model(seed=9, sharpen=8.0).requires_grad_(False)
    divergences = []
    for iterations in (1, 8):
        run = default_settings(RunSettings, seed=5, max_iterations=iterations, tasks_per_iteration=4, group_size=16)
        module = sampled(run=run, settings=settings, algorithm=OPD(settings), reference=teacher)
        divergences.append(fit(module).last_metrics["loss/kl"] or 0.0)
    assert divergences[1] < 0.8 * divergences[0]


def test_imitation_trains_on_the_accepted_corrections_alone() -> None:
    settings = default_settings(UpdateSettings, learning_rate=1e-3, scope=Scope.suffix)
    module = trained(settings=settings, algorithm=SFT(settings))
    children = [one for group in groups_of(module) for one in group.trajectories if one.fork is not None]
    tokens = sum(len(turn.action_ids) for child in children if child.fork for turn in child.turns[child.fork.step :])
    assert module.last_metrics["funnel/accepted"] == len(children) == 4
    assert module.last_metrics["tokens/trained"] == tokens
    nothing = trained(settings=settings, algorithm=SFT(settings), corrector=False)
    assert nothing.policy_version == 0
