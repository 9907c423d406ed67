"""Lightning's Trainer as a run wants it, and the settings of the process around it.

torch is imported by what is called.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rti_exp.config.check import Config
from rti_exp.config.settings import SettingsError

if TYPE_CHECKING:
    import torch
    from pytorch_lightning import Callback, Trainer

    from rti_exp.engines.base import Engine
    from rti_exp.training.learner import RTIModule

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these settings, in bytes (malloc.h)."""


def trainer(config: Config, callbacks: list[Any]) -> Trainer:
    from pytorch_lightning import Trainer

    settings = config.trainer
    return Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=_sharding(config) if settings.strategy == "fsdp" else settings.strategy,
        precision=settings.precision,  # pyright: ignore[reportArgumentType]
        deterministic="warn" if settings.deterministic else None,
        max_epochs=1,
        callbacks=callbacks,
        logger=False,  # rti_exp.tracking.loggers gets the rows, with iterations as x-axis
        enable_checkpointing=False,  # IterationCheckpoint does it
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def _sharding(config: Config) -> Any:
    from pytorch_lightning.strategies import ModelParallelStrategy

    settings = config.trainer
    return ModelParallelStrategy(
        data_parallel_size=settings.devices * settings.num_nodes,
        tensor_parallel_size=1,
        process_group_backend="gloo" if settings.accelerator == "cpu" else None,
    )


def check_strategy(config: Config) -> None:
    """
    Raises:
        SettingsError: FSDP with adapters, whose arithmetic is not that of the weights beside them.
    """
    if config.trainer.strategy == "fsdp" and config.policy.lora.rank:
        raise SettingsError(
            f"trainer.strategy=fsdp: must be ddp with policy.lora.rank={config.policy.lora.rank}; adapters are too "
            "small to be worth sharding"
        )


def check_accelerator(config: Config) -> None:
    """That a GPU that is asked for is there; imports torch for that only.

    Raises:
        SettingsError: there is none.
    """
    accelerator = config.trainer.accelerator
    if accelerator not in ("gpu", "cuda", "mps"):
        return
    import torch

    usable = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not usable.get(accelerator, any(usable.values())):
        raise SettingsError(
            f"trainer.accelerator={accelerator!r}: torch {torch.__version__} finds no usable GPU here; take trainer=cpu"
        )


def device_of(config: Config) -> torch.device:
    """Where `trainer` would put a model that is evaluated; of several devices the first."""
    import torch

    accelerator = config.trainer.accelerator
    if accelerator == "gpu":
        accelerator = "cuda" if torch.cuda.is_available() else "mps"
    return torch.device("cpu" if accelerator == "auto" else accelerator)


@contextmanager
def precision_of(config: Config, model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """The arithmetic of `trainer.precision`, as rollouts have it in training."""
    import torch

    precision = config.trainer.precision
    if precision == "bf16-mixed":
        with torch.autocast(device.type, dtype=torch.bfloat16):
            yield
        return
    if precision != "32-true":
        model.to({"bf16-true": torch.bfloat16, "64-true": torch.float64}[precision])
    yield


def forgetting(engines: Sequence[Engine]) -> Callback:
    """Each iteration starts with engines that have stored nothing, as a resumed run's do.

    What an engine has stored (of an evaluation, or a teacher of the iteration before) changes the shapes of its
    batches, and so the last digits.
    """
    from pytorch_lightning.callbacks import LambdaCallback

    def forget(trainer: Trainer, module: RTIModule, *rest: object) -> None:
        for engine in engines:
            engine.sync(module.policy_version)

    return LambdaCallback(on_train_batch_start=forget)


def seed_everything(config: Config) -> None:
    import pytorch_lightning
    import torch
    import torch.utils.deterministic

    torch.set_num_threads(config.trainer.threads)
    # Deterministic mode would fill all new memory, to show up what reads it unwritten: a tenth of a rollout's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    pytorch_lightning.seed_everything(config.run.seed, workers=True, verbose=False)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """What tensors leave stays with the process for the next ones: glibc would give it back, and get it anew as zeros.

    Of tensors of more than 64 MiB it still does (32 MiB before glibc 2.35, which takes no more, as its mallopt(3)
    says). Elsewhere nothing happens.
    """
    import ctypes
    import platform

    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    # Without the first, the second would keep glibc from raising the first by itself, and make all slower.
    if libc.mallopt(_MMAP_THRESHOLD, 2**26) or libc.mallopt(_MMAP_THRESHOLD, 2**25):
        libc.mallopt(_TRIM_THRESHOLD, 2**30)


@contextmanager
def collections_put_off() -> Iterator[None]:
    """No garbage collection, until the end: imports make objects by the hundred thousand, and they stay."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@contextmanager
def spared_by_collections() -> Iterator[None]:
    """What is there now is left out of garbage collections until the end.

    Those are the million objects of torch, transformers and Lightning: to walk them takes a third of a second each
    time, in the middle of an iteration. Afterwards they are collected as any, so that nothing stays of a job in a
    process that runs several.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def quiet() -> None:
    """Keep Lightning's and transformers' advice out of a job's log."""
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
