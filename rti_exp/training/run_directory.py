"""What the callbacks of a run share: the run's directory, and the learner that Lightning calls them with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pytorch_lightning import LightningModule

from rti_exp.training.learner import RTIModule


class RunDirectory(Protocol):
    """The part of `rti_exp.runs.Run` that callbacks use."""

    def append_metrics(self, row: Mapping[str, Any]) -> None: ...
    def append_interventions(self, records: Sequence[Mapping[str, Any]]) -> None: ...
    def append_rollouts(self, records: Iterable[Mapping[str, Any]]) -> None: ...
    def sync(self) -> None: ...
    def truncate_after(self, iteration: int) -> None: ...


def learner(module: LightningModule) -> RTIModule:
    """
    Raises:
        TypeError: not an `RTIModule`.
    """
    if not isinstance(module, RTIModule):
        raise TypeError(f"this callback works with RTIModule, not with {type(module).__name__}")
    return module
