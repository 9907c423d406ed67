"""The boundary at which what a role raises is classified: it costs the attempts it was raised for, and no others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rti_exp.engines.base import EngineUnavailable, EngineUnusable

Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoleFailed:
    """A role raised, or gave another number of answers than it was asked for."""

    why: str


def answers_of(role: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]) -> list[Result | RoleFailed]:
    """The role's answers, in the order of `items`. If it raises for all of them, each is asked for alone.

    Raises:
        EngineUnavailable: the role's engine stayed down.
        EngineUnusable: the job must end.
    """
    if not items:
        return []
    try:
        answers = list(role(items))
        if len(answers) != len(items):
            raise ValueError(f"{len(answers)} answers to {len(items)} questions")
        return answers  # pyright: ignore[reportReturnType]
    except (EngineUnavailable, EngineUnusable):
        raise
    except Exception as error:  # code of others: whatever a role raises is classified here, once
        if len(items) > 1:
            return [answer for item in items for answer in answers_of(role, [item])]
        log.warning("a role raised", exc_info=error)
        return [RoleFailed(f"{type(error).__name__}: {error}")]
