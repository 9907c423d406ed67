"""The boundary at which a role's exceptions are classified: they cost the attempts they were raised for, no others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from rti_exp.engines.base import EngineUnavailable, EngineUnusable
from rti_exp.types import Failure, FailureKind

Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


def call_role(
    role: Callable[[Sequence[Item]], Sequence[Result | Failure | None]], items: Sequence[Item]
) -> list[Result | Failure]:
    """The role's results, in the order of `items`, with a `Failure` for every item without one.

    If the role raises for all items together, each item is passed alone. None counts as unusable. If the role's engine
    is down, every item fails as unavailable.

    Raises:
        EngineUnusable: the job must stop.
    """
    if not items:
        return []
    try:
        results = list(role(items))
        if len(results) != len(items):
            raise ValueError(f"{len(results)} results for {len(items)} items")
        return [_none(role) if result is None else result for result in results]
    except EngineUnusable:
        raise
    except EngineUnavailable as error:
        return [Failure(kind=FailureKind.UNAVAILABLE, reason=str(error))] * len(items)
    except Exception as error:  # third-party code: any exception of a role is classified here, once
        if len(items) > 1:
            return [result for item in items for result in call_role(role, [item])]
        log.warning("a role raised an exception", exc_info=error)
        return [Failure(kind=FailureKind.RAISED, reason=f"{type(error).__name__}: {error}")]


def _none(role: Callable[..., object]) -> Failure:
    owner = type(getattr(role, "__self__", role)).__name__
    return Failure(kind=FailureKind.UNUSABLE, reason=f"{owner} returned None")
