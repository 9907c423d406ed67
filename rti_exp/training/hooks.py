"""What the callbacks of a run have in common: the learner that they are called with, and the run's directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytorch_lightning import LightningModule

from rti_exp.runs.disk import Disk
from rti_exp.training.learner import RTIModule


class RunDirectory(Protocol):
    """What callbacks need of `rti_exp.runs.Run`."""

    @property
    def key(self) -> str: ...
    @property
    def checkpoints(self) -> Path: ...
    @property
    def disk(self) -> Disk: ...
    def append_metrics(self, row: Mapping[str, Any]) -> None: ...
    def append_interventions(self, records: Sequence[Mapping[str, Any]]) -> None: ...
    def append_rollouts(self, records: Iterable[Mapping[str, Any]]) -> None: ...
    def truncate_after(self, iteration: int) -> None: ...


def learner(module: LightningModule) -> RTIModule:
    """
    Raises:
        TypeError: another module than ours.
    """
    if not isinstance(module, RTIModule):
        raise TypeError(f"this callback works with RTIModule, not with {type(module).__name__}")
    return module
