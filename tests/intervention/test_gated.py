"""The gate and its shadow runs in the pipeline."""

import dataclasses
import math

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import (
    GateSettings,
    InterventionSettings,
)
from rti_exp.types import Outcome
from tests.support.expected_outcomes import (
    TAKE_RED,
    TASK,
    WORLD,
    run,
)
from tests.support.fakes import GuessWorld, call
from tests.support.interventions import (
    REJECT,
    RoleEngine,
    failed_group,
    fixed,
    interventions,
    records,
)


@pytest.mark.parametrize("delta", [0.0, 0.99])
def test_a_gate_that_never_opens_spends_nothing(delta):
    engine = RoleEngine()
    world = GuessWorld()
    groups = [failed_group(WORLD, TASK)]
    assert interventions(engine, world, gate=default_settings(GateSettings, delta=delta))(groups, 0) == groups
    assert engine.calls == []
    assert world.started == 0


@pytest.mark.parametrize(
    ("delta", "log_prob", "outcome"),
    [
        (1.0, 0.0, Outcome.ACCEPTED),
        (1.0, -1e-9, Outcome.TOO_PERPLEXING),
        (5.0, -math.log(5.0), Outcome.ACCEPTED),
        (5.0, -math.log(5.0) - 1e-9, Outcome.TOO_PERPLEXING),
        (math.inf, -1000.0, Outcome.ACCEPTED),
    ],
)
def test_gate_boundaries(delta, log_prob, outcome):
    engine = RoleEngine(log_prob=lambda prompt, text: log_prob)
    [record] = run(engine, gate=default_settings(GateSettings, delta=delta))
    assert record.outcome is outcome
    assert record.perplexity == (math.inf if log_prob == -1000.0 else pytest.approx(math.exp(-log_prob)))


def some_perplexing(prompt: str, text: str) -> float:
    return -3.0 if '"red"' in text else -0.5


def mixed(prompt: str, seed: int) -> str:
    """Some corrections take the right key, others a wrong one."""
    return [TAKE_RED, call("take", key="green")][seed % 2]


def test_shadow_continues_what_the_gate_dropped_and_changes_nothing_else():
    groups = [failed_group(WORLD, TASK, 4)]
    settings = default_settings(InterventionSettings, corrections=3)
    results = {}
    seeds = {}
    for shadow in (False, True):
        engine = RoleEngine(rewrite=mixed, log_prob=some_perplexing)
        gate = default_settings(GateSettings, delta=5.0, shadow=shadow)
        results[shadow] = interventions(engine, WORLD, settings=settings, gate=gate)(groups, 2)
        seeds[shadow] = {request.seed for request in engine.requests}
    plain, shadowed = records(results[False]), records(results[True])
    assert seeds[False] < seeds[True]
    assert results[True][0].trajectories == results[False][0].trajectories == groups[0].sampled
    assert {record.outcome for record in plain} == {Outcome.TOO_PERPLEXING, Outcome.STILL_FAILED}
    for before, after in zip(plain, shadowed, strict=True):
        if before.outcome is Outcome.TOO_PERPLEXING:
            assert after.child is not None
            assert after.child.reward == 1.0
            assert dataclasses.replace(after, child=None, shadow=False) == before
            assert after.shadow
        else:
            assert after == before


def test_shadow_runs_even_if_the_gate_never_opens():
    group = failed_group(WORLD, TASK)
    [merged] = interventions(RoleEngine(), WORLD, gate=default_settings(GateSettings, delta=0.0, shadow=True))(
        [group], 2
    )
    [record] = merged.interventions
    assert record.outcome is Outcome.TOO_PERPLEXING
    assert record.shadow
    assert record.child is not None
    assert record.child.reward == 1.0
    assert merged.trajectories == group.trajectories


def test_shadow_does_not_continue_what_the_verifier_rejected():
    engine = RoleEngine(gold=fixed(REJECT), log_prob=lambda prompt, text: -3.0)
    [record] = run(engine, gate=default_settings(GateSettings, delta=5.0, shadow=True))
    assert record.outcome is Outcome.MISSES_REQUIREMENT
    assert record.child is None
    assert not record.shadow


def test_shadow_replay_mismatch_stays_too_perplexing():
    [record] = run(RoleEngine(), GuessWorld(drift=True), gate=default_settings(GateSettings, delta=1.0, shadow=True))
    assert record.outcome is Outcome.TOO_PERPLEXING
    assert record.child is None
    assert record.error is not None
    assert record.error.startswith("the replay led to state ")
