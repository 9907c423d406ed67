"""What a role does wrong is told apart: it raises, is down, answers prose, answers nothing, or repeats the step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rti_exp.engines.base import EngineUnavailable
from rti_exp.intervention.corrector import SelfCorrector
from rti_exp.intervention.role_calls import call_role
from rti_exp.types import Failure, FailureKind, Outcome, Verdict
from tests.support.fakes import GuessWorld, wrong_texts
from tests.support.interventions import (
    REWRITE,
    ROLE,
    CharRenderer,
    RoleEngine,
    failed_group,
    fixed,
    interventions,
    records,
)

WORLD = GuessWorld()
PROSE = "I think that step was rather unwise."


def found(engine: RoleEngine, tasks: int = 1) -> list[tuple[Outcome, str | None]]:
    groups = [failed_group(WORLD, task) for task in WORLD.tasks("train")[:tasks]]
    return [(one.outcome, one.error) for one in records(interventions(engine, WORLD)(groups, 1))]


def playing(role: str, reply: Any) -> RoleEngine:
    """An engine whose role `role` answers as `reply` does."""
    engine = RoleEngine()
    setattr(engine, role, reply)
    return engine


def raising(only: str = "") -> Callable[[str, int], str]:
    """A role with a bug, which shows for prompts with `only` in them."""

    def reply(prompt: str, seed: int) -> str:
        if only in prompt:
            raise KeyError("rubric")
        return '{"harmful": false}'

    return reply


@pytest.mark.parametrize(
    ("role", "prose", "nothing"),
    [
        ("judge", Outcome.NO_VERDICT, Outcome.NO_VERDICT),
        ("gold", Outcome.NO_CHECK, Outcome.NO_CHECK),
        ("rewrite", Outcome.STILL_FAILED, Outcome.NO_CORRECTION),
    ],
)
def test_a_role_that_raises_is_down_talks_or_is_silent(role: str, prose: Outcome, nothing: Outcome) -> None:
    """A corrector's prose is a turn like any other: here it ends the episode without success."""
    assert found(playing(role, raising())) == [(Outcome.ROLE_FAILED, "KeyError: 'rubric'")]
    assert found(RoleEngine(down=(role,))) == [(Outcome.ROLE_UNAVAILABLE, "the engine is down")]
    assert [outcome for outcome, _ in found(playing(role, fixed(PROSE)))] == [prose]
    assert [outcome for outcome, _ in found(playing(role, fixed("")))] == [nothing]


def test_a_corrector_that_repeats_the_step() -> None:
    same = wrong_texts(WORLD.tasks("train")[0])[0]
    assert [outcome for outcome, _ in found(RoleEngine(rewrite=fixed(same)))] == [Outcome.UNCHANGED]


def test_a_role_that_raises_for_one_case_costs_that_one() -> None:
    outcomes = found(RoleEngine(judge=raising("box b")), tasks=2)
    assert outcomes == [(Outcome.NO_FAULT, None), (Outcome.ROLE_FAILED, "KeyError: 'rubric'")]


def test_the_traceback_of_a_role_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found(RoleEngine(judge=raising()))
    assert "in reply" in caplog.text
    assert "KeyError: 'rubric'" in caplog.text


def test_a_role_is_called_for_each_item_if_it_raises_for_all_together() -> None:
    calls: list[list[int]] = []

    def role(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        if 0 in items:
            raise ZeroDivisionError("division by zero")
        return [60 // item for item in items]

    assert call_role(role, [2, 0, 3]) == [30, raised("ZeroDivisionError: division by zero"), 20]
    assert calls == [[2, 0, 3], [2], [0], [3]]
    assert call_role(role, []) == []
    assert call_role(role, [5, 6]) == [12, 10]


def raised(reason: str) -> Failure:
    return Failure(kind=FailureKind.RAISED, reason=reason)


def test_a_wrong_number_of_results_is_a_failure() -> None:
    assert call_role(lambda items: [1], [0, 0]) == [1, 1]
    assert call_role(lambda items: [], [0]) == [raised("ValueError: 0 results for 1 items")]


def test_an_engine_that_is_down_fails_every_item() -> None:
    def role(items: Sequence[int]) -> list[int]:
        raise EngineUnavailable("down")

    assert call_role(role, [1, 2]) == [Failure(kind=FailureKind.UNAVAILABLE, reason="down")] * 2


class SilentCorrector(SelfCorrector):
    """Has nothing to say, and says so by None."""

    def correct(self, harmful: Sequence[Any]) -> list[None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [None] * len(harmful)


def test_a_corrector_that_returns_none_costs_the_attempt_only() -> None:
    engine = RoleEngine()
    corrector = SilentCorrector(engine=engine, renderer=CharRenderer(), prompt=REWRITE, settings=ROLE)
    play = interventions(engine, WORLD, corrector=corrector)
    [record] = records(play([failed_group(WORLD, WORLD.tasks("train")[0])], 1))
    assert (record.outcome, record.error) == (Outcome.NO_CORRECTION, "SilentCorrector returned None")


def test_a_verdict_that_was_not_given_is_not_recorded() -> None:
    for engine in (RoleEngine(down=("judge",)), RoleEngine(judge=raising())):
        [record] = records(interventions(engine, WORLD)([failed_group(WORLD, WORLD.tasks("train")[0])], 1))
        assert (record.verdict, record.step) == (None, None)


@pytest.mark.parametrize("step", [None, 99])
def test_an_invalid_verdict_costs_the_attempt_only(step: int | None) -> None:
    play = interventions(RoleEngine(), WORLD)
    play.interventions.roles.validator.judge = lambda cases: [Verdict(kind="harmful", step=step)] * len(cases)
    [record] = records(play([failed_group(WORLD, WORLD.tasks("train")[0])], 1))
    assert record.outcome is Outcome.ROLE_FAILED
    assert record.error is not None
    assert record.error.startswith("an invalid verdict: harmful")
