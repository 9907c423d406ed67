"""The cost of the stages of an intervention: seconds, and tokens by the engines' own counters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rti_exp.engines.base import Engine

STAGES: tuple[str, ...] = ("roles", "score", "continue")


class CostMeter:
    """Counts over all of `engines`; an engine that plays several roles is counted once."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = list({id(engine): engine for engine in engines}.values())
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._generated = dict.fromkeys(STAGES, 0)
        self._scored = dict.fromkeys(STAGES, 0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the cost of the body to stage `name`."""
        start, (generated, scored) = time.perf_counter(), self._counts()
        yield
        generated_after, scored_after = self._counts()
        self._seconds[name] += time.perf_counter() - start
        self._generated[name] += generated_after - generated
        self._scored[name] += scored_after - scored

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds; continuations count as rollout."""
        return {"roles": self._seconds["roles"], "score": self._seconds["score"], "rollout": self._seconds["continue"]}

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens that the policy generated after corrections, and those that roles generated and all stages scored."""
        return {
            "generated": self._generated["continue"],
            "role_generated": self._generated["roles"],
            "role_scored": sum(self._scored.values()),
        }

    def _counts(self) -> tuple[int, int]:
        return (
            sum(engine.generated_tokens for engine in self._engines),
            sum(engine.scored_tokens for engine in self._engines),
        )
