"""A rubric's reward functions: their descriptions, and a record of their exceptions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

ERRORS: ContextVar[list[str]] = ContextVar("errors of reward functions")
"""Exceptions while a rollout is scored; each rollout has a separate context."""


def rubrics_of(rubric: Any) -> Iterator[Any]:
    """A rubric, or those of a group of rubrics."""
    inner = getattr(rubric, "rubrics", None)
    if inner is None:
        yield rubric
    else:
        for member in inner:
            yield from rubrics_of(member)


def record_errors(rubric: Any) -> None:
    """Record each reward function's exceptions in `ERRORS`: the package only logs them and counts 0."""
    for member in rubrics_of(rubric):
        member.funcs[:] = [_recording(function) for function in member.funcs]


def _recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper with the same name and signature, which the package inspects."""

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            ERRORS.get([]).append(f"{getattr(function, '__name__', function)}: {type(error).__name__}: {error}")
            raise

    return call


def conditions(rubric: Any) -> dict[str, str]:
    """Name -> the text that the roles see for a reward function that counts: its name, its docstring's first line."""
    texts: dict[str, str] = {}
    for member in rubrics_of(rubric):
        for function, weight in zip(member.funcs, member.weights, strict=True):
            if weight > 0:
                name = getattr(function, "__name__", "reward")
                line = (inspect.getdoc(function) or "").partition("\n")[0].strip()
                texts[name] = f"{name}: {line}" if line else name
    return texts


def unmet(texts: Mapping[str, str], metrics: Mapping[str, float] | None) -> list[str]:
    """The conditions that are not fully met; before the end, all of them."""
    if metrics is None:
        return list(texts.values())
    return [f"{text} (it is {metrics[name]:g})" for name, text in texts.items() if metrics.get(name, 0.0) < 1.0]
