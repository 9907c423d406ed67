"""Every outcome, with the exact record."""

import dataclasses
import math
from collections import Counter

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.role_settings import VerifierSettings
from rti_exp.config.settings import EvidenceChoice, InterventionSettings
from rti_exp.envs.base import InfrastructureError
from rti_exp.intervention.corrector import CUT_OFF, EMPTY
from rti_exp.intervention.pipeline import same_step
from rti_exp.types import Author, Check, Evidence, Fork, Message, Outcome, Verdict
from tests.support.expected_outcomes import (
    CORRECTION,
    NOT_HARMFUL,
    PASSED,
    SELECTED,
    START,
    TAKE_BLUE,
    TAKE_RED,
    TASK,
    TOKENS,
    UNCORRECTED,
    UNSCORED,
    WORLD,
    expected,
    run,
)
from tests.support.fakes import GuessEpisode, GuessWorld, right_texts
from tests.support.interventions import (
    FINE,
    REJECT,
    Cut,
    RoleEngine,
    failed_group,
    fixed,
    interventions,
)


def test_accepted_child_replaces_its_parent():
    engine = RoleEngine()
    group = failed_group(WORLD, TASK)
    [merged] = interventions(engine, WORLD)([group], 2)
    [record] = merged.interventions
    child = record.child
    assert child is not None
    assert record == expected(child=child)
    assert merged.sampled == group.sampled
    assert merged.trajectories == (group.sampled[0], child)
    assert child.member == SELECTED
    assert child.reward == 1.0
    assert child.fork == Fork(parent=SELECTED, step=0, intervention_id="2-box_0-1-0")
    assert child.correction_weights == record.weights
    assert [turn.message.content for turn in child.turns] == list(right_texts(TASK))
    assert [turn.author for turn in child.turns] == [Author.CORRECTOR, Author.POLICY, Author.POLICY]
    assert child.turns[0].action_ids == CORRECTION.action_ids
    assert child.turns[0].action_log_probs == (-0.5,) * TOKENS
    assert child.turns[0].context_ids == group.sampled[1].turns[0].context_ids


def test_no_fault():
    verdict = Verdict(kind="no_fault", answers=(FINE,) * 3)
    assert run(RoleEngine(judge=fixed(FINE))) == [
        expected(outcome=Outcome.NO_FAULT, verdict=verdict, **NOT_HARMFUL),
    ]


def test_no_verdict_after_retries():
    engine = RoleEngine(judge=fixed("it is harmful"))
    verdict = Verdict(kind="no_verdict", answers=("it is harmful",))
    assert run(engine) == [expected(outcome=Outcome.NO_VERDICT, verdict=verdict, **NOT_HARMFUL)]
    assert engine.calls == [("judge", 3), ("judge", 3)]


@pytest.mark.parametrize(("answer", "why"), [("", EMPTY), ("   ", EMPTY), (Cut(TAKE_RED), CUT_OFF)])
def test_no_correction_when_empty_or_cut_off(answer, why):
    engine = RoleEngine(rewrite=fixed(answer))
    assert run(engine) == [expected(outcome=Outcome.NO_CORRECTION, error=why.reason, **UNCORRECTED)]
    assert engine.calls == [("judge", 3), ("rewrite", 1)]


def test_unchanged():
    [record] = run(RoleEngine(rewrite=fixed(TAKE_BLUE)))
    assert record.outcome is Outcome.UNCHANGED
    assert record.correction is not None
    assert record == expected(outcome=Outcome.UNCHANGED, **{**UNCORRECTED, "correction": record.correction})


@pytest.mark.parametrize("role", ["judge", "rewrite", "gold"])
def test_an_engine_that_is_down_costs_the_attempts(role):
    lost = {"judge": NOT_HARMFUL | {"verdict": None}, "rewrite": UNCORRECTED}
    changes = lost.get(role, {"checks": (), **UNSCORED})
    assert run(RoleEngine(down=(role,))) == [
        expected(outcome=Outcome.ROLE_UNAVAILABLE, error="the engine is down", **changes)
    ]


@pytest.mark.parametrize(
    ("rejected", "outcome"),
    [
        (("gold",), Outcome.MISSES_REQUIREMENT),
        (("leak",), Outcome.LEAKED),
        (("plausible",), Outcome.IMPLAUSIBLE),
        (("gold", "plausible"), Outcome.MISSES_REQUIREMENT),
        (("gold", "leak", "plausible"), Outcome.LEAKED),
    ],
)
def test_rejected_by_the_verifier_and_scored_all_the_same(rejected, outcome):
    engine = RoleEngine()
    for name in rejected:
        setattr(engine, name, fixed(REJECT))
    checks = tuple(
        dataclasses.replace(check, passed=False, answer=REJECT) if check.name in rejected else check for check in PASSED
    )
    assert run(engine) == [expected(outcome=outcome, checks=checks)]
    assert [kind for kind, _ in engine.calls] == ["judge", "rewrite", "gold+leak+plausible", "score"]


def test_an_unreadable_check_is_no_rejection_but_an_outcome_of_its_own():
    checks = (PASSED[0], PASSED[1], Check(name="plausible", judge="policy", passed=None, answer="maybe"))
    assert run(RoleEngine(plausible=fixed("maybe"))) == [expected(outcome=Outcome.NO_CHECK, checks=checks)]


def test_leak_rule_joins_the_policy():
    engine = RoleEngine(rewrite=fixed("27"))
    verifier = default_settings(VerifierSettings, policy=True, rule=True)
    settings = default_settings(InterventionSettings, corrections=1, evidence=EvidenceChoice.reference)
    [record] = run(engine, verifier=verifier, settings=settings)
    assert record.evidence.reference == "key red, code 27"
    assert record.outcome is Outcome.LEAKED
    assert record.checks == (*PASSED, Check(name="leak", judge="rule", passed=False, answer="27"))


def test_too_perplexing():
    engine = RoleEngine(log_prob=lambda prompt, text: -2.0)
    assert run(engine) == [
        expected(
            outcome=Outcome.TOO_PERPLEXING,
            log_probs=(-2.0,) * TOKENS,
            calibration_log_probs=(-2.0,) * TOKENS,
            weights=(1.0,) * TOKENS,
            perplexity=math.exp(2.0),
        )
    ]
    assert [kind for kind, _ in engine.calls][-1] == "score"


def test_replay_mismatch_of_the_state():
    drifted = GuessEpisode(TASK, WORLD, drifted=True).state_hash()
    error = f"the replay led to state {drifted} instead of {START}"
    assert run(RoleEngine(), GuessWorld(drift=True)) == [expected(outcome=Outcome.REPLAY_MISMATCH, error=error)]


class BreaksLater(GuessWorld):
    """Goes on for `calls` starts, then raises at the next."""

    def __init__(self, calls: int, error: Exception) -> None:
        super().__init__(error=error)
        self.calls = calls

    def start(self, task):
        self.break_start = self.started >= self.calls
        return super().start(task)


def test_replay_mismatch_when_the_environment_raises():
    records = run(RoleEngine(), BreaksLater(1, ValueError("boom")))
    assert records == [expected(outcome=Outcome.REPLAY_MISMATCH, error="ValueError: boom")]


def test_replay_mismatch_when_the_evidence_cannot_be_had():
    engine = RoleEngine()
    assert run(engine, GuessWorld(break_fork=True)) == [
        expected(
            outcome=Outcome.REPLAY_MISMATCH,
            verdict=None,
            evidence=Evidence(level="rubric"),
            error="the box is gone",
            **NOT_HARMFUL,
        )
    ]
    assert engine.calls == []


class BreaksInContinuation(GuessWorld):
    """Raises when the right key is taken."""

    def start(self, task):
        world = self

        class Episode(GuessEpisode):
            def step(self, message):
                if message.content == TAKE_RED:
                    raise InfrastructureError("the lock is jammed")
                return super().step(message)

            def fork(self, messages):
                forked = Episode(self.task, world)
                for message in messages:
                    forked.step(message)
                return forked

        return Episode(task, self)


def test_continuation_failed():
    [record] = run(RoleEngine(), BreaksInContinuation())
    assert record.child is not None
    assert not record.child.valid
    assert record == expected(outcome=Outcome.CONTINUATION_FAILED, error="the lock is jammed", child=record.child)


def test_still_failed_keeps_the_original():
    group = failed_group(WORLD, TASK)
    [merged] = interventions(RoleEngine(policy=fixed("no idea")), WORLD)([group], 2)
    [record] = merged.interventions
    assert record.child is not None
    assert record.child.reward == 0.0
    assert record == expected(outcome=Outcome.STILL_FAILED, child=record.child)
    assert merged.trajectories == group.sampled


def test_a_draw_among_the_winners_is_not_always_the_first():
    accepted = Counter()
    for seed in range(12):
        found = run(RoleEngine(), settings=default_settings(InterventionSettings, corrections=3), seed=seed)
        assert sorted(record.outcome for record in found) == ["accepted", "not_chosen", "not_chosen"]
        accepted[next(record.sample for record in found if record.outcome is Outcome.ACCEPTED)] += 1
    assert accepted == {0: 3, 1: 6, 2: 3}


def test_not_chosen_is_recorded_with_its_child():
    group = failed_group(WORLD, TASK)
    settings = default_settings(InterventionSettings, corrections=3)
    [merged] = interventions(RoleEngine(), WORLD, settings=settings, seed=9)([group], 2)
    outcomes = [Outcome.NOT_CHOSEN, Outcome.NOT_CHOSEN, Outcome.ACCEPTED]
    children = [record.child for record in merged.interventions]
    assert merged.interventions == tuple(
        expected(id=f"2-box_0-1-{sample}", sample=sample, outcome=outcome, child=children[sample])
        for sample, outcome in enumerate(outcomes)
    )
    assert [child.fork.intervention_id for child in children if child and child.fork] == [
        "2-box_0-1-0",
        "2-box_0-1-1",
        "2-box_0-1-2",
    ]
    assert merged.trajectories == (group.sampled[0], children[2])


def test_a_turn_that_differs_in_its_thinking_alone_is_unchanged():
    step = Message(role="assistant", content="Sorry.", thinking="one way")
    assert same_step(step, dataclasses.replace(step, thinking="another way"))
    assert not same_step(step, dataclasses.replace(step, content="Done."))
