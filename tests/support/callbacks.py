"""Callbacks that end a training, collectors that change groups, and the rows that a run left."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback

from rti_exp.types import Group


class Altered:
    """A collector whose groups go through `change(groups, iteration)`."""

    def __init__(self, collector: Any, change: Any) -> None:
        self.collector = collector
        self.environment = collector.environment
        self.change = change

    def collect(self, tasks: Sequence[Any], group_size: int, iteration: int, **options: Any) -> list[Group]:
        return self.change(self.collector.collect(tasks, group_size, iteration, **options), iteration)


def with_trajectories(groups: Sequence[Group], change: Any) -> list[Group]:
    changed = []
    for one in groups:
        trajectories = tuple(change(each) for each in one.trajectories)
        changed.append(dataclasses.replace(one, sampled=trajectories, trajectories=trajectories))
    return changed


class Stopped(Exception):
    pass


class StopBefore(Callback):
    """Raises when iteration `iteration` is about to begin."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if pl_module.iteration + 1 == self.iteration:
            raise Stopped


class StopAfterRows(Callback):
    """Raises once the rows of `iteration` are written, before its checkpoint is."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if pl_module.iteration == self.iteration:
            raise Stopped


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    text = (directory / name).read_text()
    return [json.loads(line, parse_constant=_refuse) for line in text.splitlines()]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not strict JSON")
