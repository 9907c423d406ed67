"""Prompts without positions in the model, and corrections beyond the turn's or the trajectory's budget."""

import dataclasses

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RolloutSettings
from rti_exp.intervention.merge import settle
from rti_exp.types import Check, Outcome, Status, Verdict
from tests.support.attempts import case_of, continued_attempt, harmful_step
from tests.support.expected_outcomes import (
    CORRECTION,
    NOT_HARMFUL,
    PASSED,
    TASK,
    TOKENS,
    UNCORRECTED,
    UNSCORED,
    WORLD,
    expected,
    run,
)
from tests.support.fakes import right_texts
from tests.support.interventions import (
    FINE,
    HARMFUL,
    REJECT,
    RoleEngine,
    episode,
    failed_group,
    fixed,
    group_of,
    interventions,
)

GROUP = failed_group(WORLD, TASK)
PROMPT = GROUP.sampled[1].prompt_ids(0)
"""The rollout prompt of the harmful step."""


def test_a_judges_prompt_that_is_too_long_is_no_verdict():
    engine = RoleEngine(positions={"judge": 0})
    [record] = run(engine)
    assert record.verdict is not None
    assert record.verdict.answers[0].startswith("[not asked: ")
    verdict = Verdict(kind="no_verdict", answers=record.verdict.answers)
    assert record == expected(outcome=Outcome.NO_VERDICT, verdict=verdict, **NOT_HARMFUL)
    assert engine.calls == []  # nor asked again


def test_only_the_steps_that_are_too_long_are_not_asked():
    first = len(CORRECTION.prompt_ids) + 200
    engine = RoleEngine(positions={"judge": first})
    [record] = run(engine)
    assert record.outcome is Outcome.ACCEPTED
    assert record.verdict is not None
    assert record.verdict.answers == (HARMFUL,)
    assert engine.calls[0] == ("judge", 1)


def test_a_correction_prompt_that_is_too_long_is_no_correction():
    engine = RoleEngine(positions={"rewrite": 200})
    error = f"{len(CORRECTION.prompt_ids) + 200} tokens are too many"
    assert run(engine) == [expected(outcome=Outcome.NO_CORRECTION, error=error, **UNCORRECTED)]


def test_a_check_that_is_too_long_is_not_passed():
    engine = RoleEngine(positions={"leak": 0})
    [record] = run(engine)
    assert record.outcome is Outcome.NO_CHECK
    assert record.checks[1].answer.startswith("[not asked: ")
    check = Check(name="leak", judge="policy", passed=None, answer=record.checks[1].answer)
    assert record.checks == (PASSED[0], check, PASSED[2])


def test_a_correction_without_positions_under_the_rollout_prompt_is_none():
    engine = RoleEngine(positions={"score": len(PROMPT) + TOKENS - 1})
    error = f"{len(PROMPT) + TOKENS} tokens are too many"
    assert run(engine) == [expected(outcome=Outcome.NO_CORRECTION, error=error, **UNSCORED)]


def test_a_correction_without_positions_under_its_own_prompt_is_none():
    engine = RoleEngine(positions={"score": len(PROMPT) + TOKENS})
    error = f"{len(CORRECTION.prompt_ids) + TOKENS} tokens are too many"
    unweighed = {"calibration_log_probs": (), "weights": ()}
    assert run(engine) == [expected(outcome=Outcome.NO_CORRECTION, error=error, **unweighed)]


def test_an_attempt_that_was_rejected_before_keeps_its_outcome():
    engine = RoleEngine(gold=fixed(REJECT), positions={"score": 0})
    [record] = run(engine)
    assert (record.outcome, record.log_probs, record.error) == (Outcome.MISSES_REQUIREMENT, (), None)


@pytest.mark.parametrize(("max_tokens", "accepted"), [(TOKENS - 1, False), (TOKENS, True)])
def test_a_correction_is_no_longer_than_a_turn_may_be(max_tokens, accepted):
    rollout = default_settings(RolloutSettings, max_tokens=max_tokens, max_context=1_000_000)
    [record] = run(RoleEngine(), rollout=rollout)
    if accepted:
        assert record.outcome is Outcome.ACCEPTED
        return
    error = f"the correction has {TOKENS} tokens, rollout.max_tokens is {TOKENS - 1}"
    changes = {"checks": (), **UNSCORED}
    assert record == expected(outcome=Outcome.NO_CORRECTION, error=error, **changes)


@pytest.mark.parametrize(("room", "outcome"), [(0, Outcome.ACCEPTED), (-1, Outcome.STILL_FAILED)])
def test_a_correction_past_the_context_is_truncated_whatever_it_did(room, outcome):
    """The corrected turn is the answer itself, which ends the episode with success."""
    take, look, code = right_texts(TASK)
    group = group_of(TASK, [episode(WORLD, TASK, member, (take, look, "stuck")) for member in range(2)])
    needed = len(group.sampled[0].prompt_ids(2)) + len(code) + 1
    engine = RoleEngine(
        judge=lambda prompt, seed: HARMFUL if "<assistant>stuck<end>" in prompt else FINE, rewrite=fixed(code)
    )
    rollout = default_settings(RolloutSettings, max_tokens=200, max_context=needed + room)
    [merged] = interventions(engine, WORLD, rollout=rollout)([group], 2)
    [record] = merged.interventions
    assert record.outcome is outcome
    assert record.child is not None
    if outcome is Outcome.ACCEPTED:
        assert (record.child.status, record.child.reward, record.error) == (Status.OK, 1.0, None)
        return
    assert (record.child.status, record.child.reward) == (Status.TRUNCATED, 0.0)
    assert record.error == f"the trajectory has {needed} tokens, rollout.max_context is {needed - 1}"
    assert merged.trajectories == group.sampled


def test_a_truncated_continuation_is_no_success_however_low_the_threshold():
    child = dataclasses.replace(GROUP.sampled[0], status=Status.TRUNCATED, reward=0.0)
    [ended] = settle([continued_attempt(harmful_step(case_of(GROUP.sampled[0], TASK)), child)], -1.0)
    assert ended.outcome is Outcome.STILL_FAILED
