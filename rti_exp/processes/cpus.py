"""The number of CPUs that this process may use."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """All of the machine's where the system has no affinity masks (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
