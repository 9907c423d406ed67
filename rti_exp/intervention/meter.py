"""What an intervention costs: seconds, and tokens by the engines' own counters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rti_exp.engines.base import Engine

STAGES: tuple[str, ...] = ("roles", "score", "continue")


class Meter:
    """Counts over all of `engines`; each object is counted once, however many roles it plays."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = list({id(engine): engine for engine in engines}.values())
        self.reset()

    def reset(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.generated = dict.fromkeys(STAGES, 0)
        self.scored = dict.fromkeys(STAGES, 0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds what happens inside to stage `name`."""
        started, generated, scored = time.perf_counter(), self._generated(), self._scored()
        yield
        self.seconds[name] += time.perf_counter() - started
        self.generated[name] += self._generated() - generated
        self.scored[name] += self._scored() - scored

    def _generated(self) -> int:
        return sum(engine.generated_tokens for engine in self.engines)

    def _scored(self) -> int:
        return sum(engine.scored_tokens for engine in self.engines)
