"""Lightning's Trainer for a run, and the settings of its process. The called code imports torch."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rti_exp.config.job_settings import TrainerSettings
from rti_exp.config.settings import SettingsError

if TYPE_CHECKING:
    import torch
    from pytorch_lightning import Callback, Trainer

    from rti_exp.engines.base import Engine


def build_trainer(settings: TrainerSettings, callbacks: list[Any]) -> Trainer:
    from pytorch_lightning import Trainer

    return Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=_sharding(settings) if settings.strategy == "fsdp" else settings.strategy,
        precision=settings.precision,  # pyright: ignore[reportArgumentType]
        deterministic="warn" if settings.deterministic else None,
        max_epochs=1,
        callbacks=callbacks,
        logger=False,  # rti_exp.tracking logs the rows, with iterations as x-axis
        enable_checkpointing=False,  # IterationCheckpoint saves
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def _sharding(settings: TrainerSettings) -> Any:
    from pytorch_lightning.strategies import ModelParallelStrategy

    return ModelParallelStrategy(
        data_parallel_size=settings.devices * settings.num_nodes,
        tensor_parallel_size=1,
        process_group_backend="gloo" if settings.accelerator == "cpu" else None,
    )


def check_accelerator(accelerator: str) -> None:
    """Imports torch only if a GPU is asked for.

    Raises:
        SettingsError: a GPU is asked for, and torch finds none.
    """
    if accelerator not in ("gpu", "cuda", "mps"):
        return
    import torch

    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(accelerator, any(usable.values())):
        raise SettingsError(
            f"trainer.accelerator={accelerator!r}: torch {torch.__version__} finds no usable GPU here; use trainer=cpu"
        )


def device_of(accelerator: str) -> torch.device:
    """The device of a model that is evaluated under `trainer.accelerator`; the first of several."""
    import torch

    if accelerator == "gpu":
        accelerator = "cuda" if torch.cuda.is_available() else "mps"
    return torch.device("cpu" if accelerator == "auto" else accelerator)


@contextmanager
def precision_context(precision: str, model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """The arithmetic that rollouts have in training under `trainer.precision`."""
    import torch

    if precision == "bf16-mixed":
        with torch.autocast(device.type, dtype=torch.bfloat16):
            yield
        return
    if precision != "32-true":
        model.to({"bf16-true": torch.bfloat16, "64-true": torch.float64}[precision])
    yield


def engine_callback(engines: Sequence[Engine]) -> Callback:
    """Clears the engines' caches before each iteration, and closes engines that have processes after training.

    A cache (left by an evaluation, or by the iteration before) changes the shapes of the next batches and so the last
    digits; a resumed run starts without one.
    """
    from pytorch_lightning.callbacks import LambdaCallback

    def clear(trainer: Any, module: Any, *rest: object) -> None:
        for engine in engines:
            engine.sync(module.policy_version)

    def close(*rest: object) -> None:
        for engine in engines:
            if (close_engine := getattr(engine, "close", None)) is not None:
                close_engine()

    return LambdaCallback(on_train_batch_start=clear, on_fit_end=close, on_exception=close)


def prepare_process(seed: int, threads: int) -> None:
    """Seeds every generator and sets torch's threads, before an experiment is built."""
    silence_libraries()
    import pytorch_lightning
    import torch
    import torch.utils.deterministic

    torch.set_num_threads(threads)
    # Deterministic mode would fill all new memory to expose reads of it: a tenth of a rollout's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    pytorch_lightning.seed_everything(seed, workers=True, verbose=False)


def silence_libraries() -> None:
    """Keeps Lightning's and transformers' advice out of a job's log."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import pytorch_lightning  # noqa: F401  (sets the level of its logger when imported)
    import transformers

    for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in logging.root.manager.loggerDict:
        if name.startswith(("pytorch_lightning.", "lightning_fabric.")):
            logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("pytorch_lightning", "lightning_fabric", "torch"):
        warnings.filterwarnings("ignore", module=module)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
