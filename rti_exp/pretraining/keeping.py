"""What is done of a training run, on disk, so that one that was ended goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from rti_exp.models.weights import kept_weights, restore_weights


class OtherRun(ValueError):
    """The file is another run's."""


class Keeper:
    """Writes trained weights, optimizer and losses to `path` every so many steps, and reads them back.

    Args:
        path: written to a file beside it first, so that it is whole or not there.
        identity: what the run is; a file of another one is refused.
        every: steps between two files.
    """

    def __init__(self, path: Path, *, identity: str, every: int) -> None:
        self.losses: list[float] = []
        """Of each step so far."""
        self._path = path
        self._identity = identity
        self._every = every

    def restore(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer, scheduler: Any) -> int:
        """The steps that are done, with everything as it was after them; 0 without a file.

        Raises:
            OtherRun: the file is another run's.
        """
        if not self._path.is_file():
            return 0
        state = torch.load(self._path, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise OtherRun(f"{self._path} is of other settings")
        restore_weights(model, state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        self.losses = list(state["losses"])
        return len(self.losses)

    def after(self, loss: float, model: PreTrainedModel, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
        """Call it after each step."""
        self.losses.append(loss)
        if len(self.losses) % self._every:
            return
        state = {
            "identity": self._identity,
            "model": kept_weights(model),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "losses": self.losses,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        half = self._path.with_suffix(".half")
        torch.save(state, half)
        os.replace(half, self._path)
