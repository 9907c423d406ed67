"""Objects that exist before training are left out of its garbage collections, and only of its."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rti_exp.sweep import job
from rti_exp.training.learner import RTIModule
from tests.support.jobs import SMALL


def test_training_freezes_imported_objects_and_leaves_nothing_frozen(
    composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    counts: list[int] = []
    real = RTIModule.training_step

    def step(self: RTIModule, tasks: Any) -> None:
        counts.append(gc.get_freeze_count())
        real(self, tasks)

    monkeypatch.setattr(RTIModule, "training_step", step)
    small = (*SMALL, f"policy.path={policy_folder}", "max_iterations=2", f"runs_root={tmp_path}", "eval.tasks=0")
    assert job.run_job(composed(*small)) == 0
    assert len(counts) == 2
    assert all(count > 100_000 for count in counts)  # torch is imported
    assert gc.get_freeze_count() == 0
