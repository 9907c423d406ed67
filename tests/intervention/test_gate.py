"""Scores, perplexity and rho of corrections, by hand."""

import math
from collections.abc import Sequence

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import GateSettings, ReweightSettings, Scorer
from rti_exp.engines.base import EngineUnavailable, ScoreRequest
from rti_exp.intervention.case import Checked, Scored
from rti_exp.intervention.gate import CorrectionScorer, PerplexityGate, calibration_engine, perplexity
from rti_exp.types import Correction, Message, Outcome
from tests.support.attempts import case_of, checked_attempt, harmful_step
from tests.support.fakes import GuessWorld, wrong_texts
from tests.support.interventions import RoleEngine, episode

WORLD = GuessWorld()
TASK = WORLD.tasks("train")[0]
CALIBRATION_PROMPT = (7, 7)


class Table(RoleEngine):
    """Scores by a table: under the correction prompt, and under any other."""

    rollout: tuple[float, ...] = (-1.0, -2.0, -0.5)
    calibration: tuple[float, ...] = (-0.9, -0.5, -3.0)

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        self.calls.append(("score", len(requests)))
        if self.down:
            raise EngineUnavailable("down")
        return [self.calibration if one.prompt_ids == CALIBRATION_PROMPT else self.rollout for one in requests]


def an_attempt(rejection: Outcome | None = None) -> Checked:
    correction = Correction(
        prompt_ids=CALIBRATION_PROMPT,
        action_ids=(1, 2, 3),
        text="",
        message=Message(role="assistant", content=""),
        source="self",
    )
    case = case_of(episode(WORLD, TASK, 0, wrong_texts(TASK)), TASK)
    return checked_attempt(harmful_step(case, 1), correction, rejection)


def test_scores_perplexity_and_rho_by_hand():
    engine = Table()
    [attempt], ended = CorrectionScorer(engine=engine, calibration_engine=engine, eps_cal=0.5).score([an_attempt()])
    assert ended == []
    assert attempt.log_probs == (-1.0, -2.0, -0.5)
    assert attempt.calibration_log_probs == (-0.9, -0.5, -3.0)
    assert attempt.perplexity == pytest.approx(math.exp(3.5 / 3))
    # exp(0.1); exp(1.5) = 4.48 clipped to 1.5; exp(-2.5) = 0.08 clipped to 0.5
    assert attempt.weights == pytest.approx((1.1051709180756477, 1.5, 0.5), abs=1e-15)
    assert engine.calls == [("score", 2)]


def test_many_attempts_are_scored_in_one_call_in_their_order():
    engine = Table()
    attempts = [an_attempt() for _ in range(3)]
    scored, _ = CorrectionScorer(engine=engine, calibration_engine=engine, eps_cal=0.2).score(attempts)
    assert engine.calls == [("score", 6)]
    assert [attempt.weights for attempt in scored] == [pytest.approx((1.1051709180756477, 1.2, 0.8))] * 3


def test_without_calibration_every_weight_is_exactly_1():
    engine = Table()
    [attempt], _ = CorrectionScorer(engine=engine, calibration_engine=None, eps_cal=0.5).score([an_attempt()])
    assert attempt.weights == (1.0, 1.0, 1.0)
    assert attempt.calibration_log_probs == ()
    assert engine.calls == [("score", 1)]


def test_a_source_that_is_down_ends_only_accepted_corrections():
    source = Table(down=("score",))
    scorer = CorrectionScorer(engine=Table(), calibration_engine=source, eps_cal=0.5)
    scored, [live, rejected] = scorer.score([an_attempt(), an_attempt(Outcome.LEAKED)])
    assert scored == []
    assert (live.outcome, live.error) == (Outcome.ROLE_UNAVAILABLE, "down")
    assert (rejected.outcome, rejected.error) == (Outcome.LEAKED, None)
    for attempt in (live, rejected):
        assert isinstance(attempt.reached, Scored)
        assert attempt.reached.log_probs == (-1.0, -2.0, -0.5)


def test_the_policy_that_is_down_ends_the_run():
    engine = Table(down=("score",))
    with pytest.raises(EngineUnavailable):
        CorrectionScorer(engine=engine, calibration_engine=engine, eps_cal=0.5).score([an_attempt()])


def test_a_nan_log_prob_is_an_error():
    class Broken(Table):
        rollout = (-1.0, math.nan, -0.5)

    engine = Broken()
    with pytest.raises(ValueError, match="NaN"):
        CorrectionScorer(engine=engine, calibration_engine=engine, eps_cal=0.5).score([an_attempt()])


def test_nothing_to_score_calls_nothing():
    engine = Table()
    CorrectionScorer(engine=engine, calibration_engine=engine, eps_cal=0.5).score([])
    assert engine.calls == []


@pytest.mark.parametrize(
    ("settings", "who"),
    [
        (default_settings(ReweightSettings, eps_cal=0.2, scorer=Scorer.policy), "policy"),
        (default_settings(ReweightSettings, eps_cal=0.2, scorer=Scorer.source), "source"),
        (default_settings(ReweightSettings, eps_cal=0.2, scorer=Scorer.off), None),
        (default_settings(ReweightSettings, eps_cal=0.0, scorer=Scorer.policy), None),
        (default_settings(ReweightSettings, eps_cal=0.0, scorer=Scorer.source), None),
    ],
)
def test_who_scores_pi_cal(settings, who):
    policy, source = RoleEngine(), RoleEngine()
    engines = {"policy": policy, "source": source, None: None}
    assert calibration_engine(settings, policy=policy, source=source) is engines[who]


@pytest.mark.parametrize(
    ("log_probs", "value"),
    [((0.0,), 1.0), ((-1.0, -3.0), math.exp(2.0)), ((-800.0,), math.inf), ((-math.inf, -1.0), math.inf)],
)
def test_perplexity(log_probs, value):
    assert perplexity(log_probs) == value


@pytest.mark.parametrize(
    ("log_prob", "delta", "passes"),
    [
        (0.0, 1.0, True),
        (0.0, 0.99, False),
        (0.0, 0.0, False),
        (-math.log(5), 5.0, True),
        (-math.log(5) - 1e-12, 5.0, False),
        (-800.0, math.inf, True),
        (-math.inf, math.inf, True),
        (-800.0, 1e300, False),
    ],
)
def test_gate_compares_in_log_space(log_prob, delta, passes):
    assert PerplexityGate(default_settings(GateSettings, delta=delta)).passes((log_prob,) * 4) is passes
