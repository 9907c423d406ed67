"""Metrics of a sampler that is not the scorer: how far its log-probs were from the trainer's. Imports torch lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rti_exp.engines.base import Engine
    from rti_exp.engines.vllm.engine import VllmEngine


class SamplerMismatch:
    """The mismatch of an iteration's rollouts, over all ranks, and the seconds that this rank took to send weights."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._weight_seconds = engine.weight_seconds

    def begin(self) -> None:
        from rti_exp.engines.vllm.mismatch import Mismatch

        self._engine.mismatch = Mismatch()
        self._weight_seconds = self._engine.weight_seconds

    def metrics(self) -> dict[str, float | None]:
        from rti_exp.engines.vllm.mismatch import summed
        from rti_exp.training.distributed import gather_from_ranks

        total = summed(gather_from_ranks(self._engine.mismatch))
        return {
            **total.metrics(weighted=self._engine.importance_cap is not None),
            "time/weights": self._engine.weight_seconds - self._weight_seconds,
        }


def sampler_mismatch(engine: Engine) -> list[SamplerMismatch]:
    """The mismatch as a metric source; none for an engine that samples with the trainer's own weights."""
    from rti_exp.engines.vllm.engine import VllmEngine

    return [SamplerMismatch(engine)] if isinstance(engine, VllmEngine) else []
