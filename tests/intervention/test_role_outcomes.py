"""What a role does wrong is told apart: it raises, is down, answers prose, answers nothing, or repeats the step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rti_exp.engines.base import EngineUnavailable
from rti_exp.intervention.guarded import RoleFailed, answers_of
from rti_exp.types import Outcome
from tests.support.fakes import GuessWorld, wrong_texts
from tests.support.interventions import RoleEngine, failed_group, fixed, interventions, records

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


def test_answers_of_asks_each_alone_where_all_together_raise() -> None:
    asked: list[list[int]] = []

    def role(items: Sequence[int]) -> list[int]:
        asked.append(list(items))
        if 0 in items:
            raise ZeroDivisionError("division by zero")
        return [60 // item for item in items]

    assert answers_of(role, [2, 0, 3]) == [30, RoleFailed("ZeroDivisionError: division by zero"), 20]
    assert asked == [[2, 0, 3], [2], [0], [3]]
    assert answers_of(role, []) == []
    assert answers_of(role, [5, 6]) == [12, 10]


def test_another_number_of_answers_is_a_failure() -> None:
    assert answers_of(lambda items: [1], [0, 0]) == [1, 1]
    assert answers_of(lambda items: [], [0]) == [RoleFailed("ValueError: 0 answers to 1 questions")]


def test_an_engine_that_is_down_is_another_matter() -> None:
    def role(items: Sequence[int]) -> list[int]:
        raise EngineUnavailable("down")

    with pytest.raises(EngineUnavailable):
        answers_of(role, [1, 2])
