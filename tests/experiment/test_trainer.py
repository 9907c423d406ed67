"""Garbage collections while a job is built and trained: none in the one, not of what was there before in the other."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.experiment.trainer import collections_put_off, keep_freed_memory, spared_by_collections
from rti_exp.sweep import job
from rti_exp.training.learner import RTIModule
from tests.commands.test_train import SMALL


class Node:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_there_is_left_out_and_collected_afterwards() -> None:
    gone, before = Node(), Node()
    known = [weakref.ref(gone), weakref.ref(before)]
    del gone
    with spared_by_collections():
        assert known[0]() is None  # garbage is not kept for it
        del before
        made = Node()
        known.append(weakref.ref(made))
        del made
        gc.collect()
        assert known[1]() is not None  # not looked at
        assert known[2]() is None  # looked at as ever
    gc.collect()
    assert known[1]() is None


def test_it_ends_however_training_does() -> None:
    with pytest.raises(ZeroDivisionError), spared_by_collections():
        raise ZeroDivisionError(gc.get_freeze_count())
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("on", [True, False])
def test_collections_are_put_off_however_building_ends(on: bool) -> None:
    found: list[bool] = []

    def build() -> None:
        with collections_put_off():
            found.append(gc.isenabled())
            raise ZeroDivisionError

    try:
        if not on:
            gc.disable()
        with pytest.raises(ZeroDivisionError):
            build()
        assert (found, gc.isenabled()) == ([False], on)
    finally:
        gc.enable()


def test_a_job_trains_so_and_leaves_nothing_frozen(
    composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[int, bool]] = []
    real = RTIModule.training_step

    def step(self: RTIModule, tasks: Any) -> None:
        counts.append((gc.get_freeze_count(), gc.isenabled()))
        real(self, tasks)

    monkeypatch.setattr(RTIModule, "training_step", step)
    small = (*SMALL, f"policy.path={policy_folder}", "max_iterations=2", f"runs_root={tmp_path}", "eval.tasks=0")
    assert job.run_job(composed(*small)) == 0
    assert len(counts) == 2
    assert all(frozen > 100_000 and on for frozen, on in counts)  # torch is imported
    assert (gc.get_freeze_count(), gc.isenabled()) == (0, True)


FAULTS = """
import resource, sys, torch
from rti_exp.experiment.trainer import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
faults = []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(2**21) for _ in range(8)]
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[20:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_of_tensors_is_used_again() -> None:
    """Eight tensors of 8 MiB, ten times after twenty: pages that the system has to give anew.

    Without a threshold glibc keeps them at times: if something small happens to lie behind them.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    faults = {
        how: int(
            subprocess.run([sys.executable, "-c", FAULTS, how], env=environment, capture_output=True, check=True).stdout
        )
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 200
    assert faults["given back"] > 20 * faults["kept"]


@pytest.mark.parametrize(
    ("limit", "settings"),
    [
        (2**40, [(-3, 2**26), (-1, 2**30)]),
        (2**25, [(-3, 2**26), (-3, 2**25), (-1, 2**30)]),
        (0, [(-3, 2**26), (-3, 2**25)]),
    ],
    ids=["glibc 2.35", "glibc before 2.35", "none is taken"],
)
def test_memory_is_not_kept_by_halves(
    monkeypatch: pytest.MonkeyPatch, limit: int, settings: list[tuple[int, int]]
) -> None:
    """The threshold of trimming set alone would leave each tensor of more than 128 KiB to be given back."""
    told: list[tuple[int, int]] = []

    class Libc:
        def mallopt(self, name: int, value: int) -> int:
            told.append((name, value))
            return int(name != -3 or value <= limit)

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc())
    keep_freed_memory()
    assert told == settings


def test_another_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail(f"loaded {name}"))
    keep_freed_memory()
