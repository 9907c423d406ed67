"""The number of usable CPUs, on each system."""

from __future__ import annotations

import os

import pytest

from rti_exp.processes.cpus import usable_cpus


def test_it_is_the_number_in_the_affinity_mask() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity masks")
    assert usable_cpus() == len(os.sched_getaffinity(0))


def test_a_system_without_affinity_masks_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cpus() == 6
