"""Calls of which some requests may come to nothing: the others are done, and these get the reason.

A request comes to nothing if it is too long for the model, or if its engine, behind a network, lost it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rti_exp.engines.base import Engine, GenerateRequest, RequestsLost, RequestsTooLong, ScoreRequest
from rti_exp.types import Completion

Request = TypeVar("Request")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TooLong:
    """In place of the result of a request that the model has no positions for."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of the completion of a request that was lost."""

    why: str


def generate_fitting(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion | TooLong | Lost]:
    """`engine.generate`, in the order of `requests`.

    Raises:
        EngineUnavailable: the engine stayed down, so that all requests are lost.
    """

    def generate(fitting: Sequence[GenerateRequest]) -> list[Completion | Lost]:
        try:
            return [*engine.generate(fitting)]
        except RequestsLost as error:
            reasons = {index: Lost(why) for index, why in error.reasons.items()}
            return [error.answered.get(index) or reasons[index] for index in range(len(fitting))]

    return _fitting(generate, requests)


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
