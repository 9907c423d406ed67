"""Runs a test module as two ranks of one job, and compares what they computed with one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp.training.metrics import is_timing

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_two_ranks(module: str, output: Path, *, seconds: float) -> tuple[Any, list[str]]:
    """The object that rank 0 saved to `output`, and each rank's standard output."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(output)],
            cwd=ROOT,
            env={**os.environ, **common, "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=seconds) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], printed
    return torch.load(output, weights_only=False), [text for text, _ in printed]


def assert_equal_but_for_rounding(actual: Any, expected: Any, *, relative: float = 1e-6) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert actual[name] == pytest.approx(value, rel=relative, abs=1e-9), name
        else:
            assert actual[name] == value, name


def assert_gradients_equal(actual: Any, expected: Any) -> None:
    """Each step has gradients, and they are equal up to the rounding of doubles."""
    assert len(actual) == len(expected) > 0
    for step, reference in zip(actual, expected, strict=True):
        assert max(value.abs().max().item() for value in reference) > 1e-3
        for value, other in zip(step, reference, strict=True):
            torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-12)


def timeless(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not is_timing(name)}
