"""Calls whose requests may be too long for the model: those that fit are done, the others get the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rti_exp.engines.base import Engine, GenerateRequest, RequestsTooLong, ScoreRequest
from rti_exp.types import Completion

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TooLong:
    """In place of the result of a request that the model has no positions for."""

    why: str


def generate_fitting(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion | TooLong]:
    """`engine.generate`, in the order of `requests`.

    Raises:
        EngineUnavailable: the engine stayed down.
    """
    return _fitting(engine.generate, requests)


def score_fitting(engine: Engine, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...] | TooLong]:
    """`engine.score`, in the order of `requests`.

    Raises:
        EngineUnavailable: the engine stayed down.
    """
    return _fitting(engine.score, requests)


def _fitting(call: Callable[[Sequence[Request]], list[Result]], requests: Sequence[Request]) -> list[Result | TooLong]:
    try:
        return [*call(requests)]
    except RequestsTooLong as error:
        reasons = error.reasons
    fitting = [index for index in range(len(requests)) if index not in reasons]
    results = dict(zip(fitting, call([requests[index] for index in fitting]), strict=True)) if fitting else {}
    return [results[index] if index in results else TooLong(reasons[index]) for index in range(len(requests))]
