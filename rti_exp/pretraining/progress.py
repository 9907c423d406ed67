"""The progress of a training run: lines on the terminal, and a file from which an interrupted run resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from rti_exp.models.weights import kept_weights, restore_weights


class ForeignProgress(ValueError):
    """The file belongs to a run with other settings."""


class TrainingProgress:
    """Saves trained weights, optimizer, schedule and losses to `path`, and restores them.

    Args:
        path: Written to a temporary file first, so that it is complete or absent.
        identity: Identifies the run. A file with another identity is refused.
        every: Steps between two saves.
    """

    def __init__(self, path: Path, *, identity: str, every: int) -> None:
        self._path = path
        self._identity = identity
        self._every = every

    def restore(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer, scheduler: Any) -> list[float]:
        """Restore the state after the last save. Returns the losses of the finished steps, none without a file.

        Raises:
            ForeignProgress: the file belongs to a run with other settings.
        """
        if not self._path.is_file():
            return []
        state = torch.load(self._path, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise ForeignProgress(f"{self._path} belongs to a run with other settings")
        restore_weights(model, state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        return list(state["losses"])

    def after_step(
        self, losses: Sequence[float], model: PreTrainedModel, optimizer: torch.optim.Optimizer, scheduler: Any
    ) -> None:
        """Save if `every` steps have passed. `losses` are those of all steps so far."""
        if len(losses) % self._every:
            return
        state = {
            "identity": self._identity,
            "model": kept_weights(model),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "losses": list(losses),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".half")
        torch.save(state, temporary)
        os.replace(temporary, self._path)


class ProgressLines:
    """Prints a line every `every` steps, and for the first step of this process and the last step."""

    def __init__(self, name: str, *, steps: int, every: int) -> None:
        self._name, self._steps, self._every = name, steps, every
        self._started, self._first_step = time.monotonic(), 0

    def __call__(self, losses: Sequence[float]) -> None:
        step = len(losses)
        self._first_step = self._first_step or step
        if step % self._every and step not in (self._first_step, self._steps):
            return
        seconds_per_step = (time.monotonic() - self._started) / (step - self._first_step + 1)
        minutes = seconds_per_step * (self._steps - step) / 60
        loss = mean(losses[-self._every :])
        print(f"{self._name}step {step} of {self._steps}, loss {loss:.3f}, {minutes:.0f} minutes left", flush=True)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
