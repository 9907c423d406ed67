"""Checkpoints by RL iteration, and resuming from them, as a callback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer

from rti_exp.training.checkpoints import latest_valid_checkpoint, save_checkpoint
from rti_exp.training.iteration import Stopwatch
from rti_exp.training.learner import RTIModule
from rti_exp.training.run_directory import RunDirectory, learner

log = logging.getLogger(__name__)


class IterationCheckpoint(Callback):
    """Saves checkpoints by RL iteration and resumes from them; must follow the callbacks that write rows.

    Saves every `every` iterations, at the end, and on an exception or interrupt if the weights are those of a finished
    iteration whose rows are written. Before a checkpoint is saved, all rows are synced. At the start of fit the newest
    valid checkpoint is restored into module, optimizer and data module, and the rows of later iterations are dropped,
    to be written again.

    Args:
        run: None on ranks that write nothing.
        run_key: A checkpoint of another run is refused.
        checkpoints: Folder of the run's checkpoints; every rank reads it.
        every: Iterations between two checkpoints, >= 1.
        config: The run's, to say how another run's config differs.
        stopwatch: Adds the seconds of saving to its phase "logging".
    """

    def __init__(
        self,
        *,
        run: RunDirectory | None,
        run_key: str,
        checkpoints: Path,
        every: int = 1,
        config: Mapping[str, Any] | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.run = run
        self.run_key = run_key
        self.checkpoints = checkpoints
        self.every = every
        self.config = config
        self.stopwatch = stopwatch or Stopwatch()
        self._recorded = 0
        self._saved = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = learner(pl_module)
        state = latest_valid_checkpoint(self.checkpoints, self.run_key, self.config)
        if state is not None:
            module.restore_training_state(state)
            _datamodule(trainer).load_state_dict({"iteration": module.iteration})
            log.info("resumed after iteration %d", module.iteration)
        self._recorded = self._saved = module.iteration
        if self.run is not None:
            # Without a checkpoint the evaluation before the first iteration is repeated too.
            self.run.truncate_after(module.iteration if state is not None else -1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module = learner(pl_module)
        self._recorded = module.iteration
        if module.iteration % self.every == 0:
            with self.stopwatch.time("logging"):
                self._save(module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(learner(pl_module))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        module = learner(pl_module)
        # Sharded weights are gathered by all ranks together, and the other ranks may be elsewhere.
        intact = not (module.updating or module.policy.sharded)
        if intact and module.iteration == self._recorded:
            try:
                self._save(module)
            except OSError as error:  # the exception that ended training is the one to report
                log.warning("no checkpoint after the exception: %s", error)

    def _save(self, module: RTIModule) -> None:
        if module.iteration <= self._saved:
            return
        state = module.training_state() if self.run is not None or module.policy.sharded else None
        if self.run is not None and state is not None:
            self.run.sync()
            save_checkpoint(self.checkpoints, self.run_key, state, previous=self._saved, config=self.config)
        self._saved = module.iteration


def _datamodule(trainer: Trainer) -> LightningDataModule:
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, LightningDataModule):
        raise TypeError("IterationCheckpoint needs a data module: trainer.fit(module, datamodule=...)")
    return datamodule
