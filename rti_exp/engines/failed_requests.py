"""Batch calls in which individual requests may fail: the others are answered, and these give a `Failure`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rti_exp.engines.base import Engine, GenerateRequest, RequestsFailed, ScoreRequest
from rti_exp.types import Completion, Failure

Request = TypeVar("Request")
Result = TypeVar("Result")


def generate_each(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion | Failure]:
    """`engine.generate`, in the order of `requests`.

    Raises:
        EngineUnavailable: the engine stayed down, so no request is answered.
    """
    return _each(engine.generate, requests)


def score_each(engine: Engine, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...] | Failure]:
    """`engine.score`, in the order of `requests`.

    Raises:
        EngineUnavailable: the engine stayed down.
    """
    return _each(engine.score, requests)


def _each(call: Callable[[Sequence[Request]], list[Result]], requests: Sequence[Request]) -> list[Result | Failure]:
    try:
        return [*call(requests)]
    except RequestsFailed as error:
        failures, answered = error.failures, dict(error.answered)
    rest = [index for index in range(len(requests)) if index not in failures and index not in answered]
    if rest:
        answered.update(zip(rest, _each(call, [requests[index] for index in rest]), strict=True))
    return [failures[index] if index in failures else answered[index] for index in range(len(requests))]
