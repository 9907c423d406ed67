"""A sampler that is not the scorer, in the metrics: how far its log-probs were from the trainer's.

torch is imported by what is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytorch_lightning import Callback

    from rti_exp.engines.base import Engine
    from rti_exp.engines.vllm.engine import VllmEngine


def mismatch_callbacks(engine: Engine) -> list[Callback]:
    """One that puts the mismatch of an iteration's rollouts into its metrics, of all processes; none for other engines.

    `time/weights` are the seconds that giving the weights took, of this process.
    """
    from rti_exp.engines.vllm.engine import VllmEngine

    if not isinstance(engine, VllmEngine):
        return []
    from pytorch_lightning.callbacks import LambdaCallback

    seconds = [engine.weight_seconds]

    def begin(*rest: object) -> None:
        _restart(engine)
        seconds[0] = engine.weight_seconds

    def end(trainer: Any, module: Any, *rest: object) -> None:
        from rti_exp.engines.vllm.mismatch import summed
        from rti_exp.training.distributed import gather_from_ranks

        whole = summed(gather_from_ranks(engine.mismatch))
        found = whole.metrics(weighted=engine.importance_cap is not None)
        module.last_metrics = {**module.last_metrics, **found, "time/weights": engine.weight_seconds - seconds[0]}

    def stop(*rest: object) -> None:
        engine.close()

    return [LambdaCallback(on_train_batch_start=begin, on_train_batch_end=end, on_fit_end=stop, on_exception=stop)]


def _restart(engine: VllmEngine) -> None:
    from rti_exp.engines.vllm.mismatch import Mismatch

    engine.mismatch = Mismatch()
