"""Two processes under FSDP2 give what one process gives on the same tasks, and none waits for the other for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.build import check_parts
from tests.support import sharding_cases
from tests.training.test_distributed import assert_equal_but_for_rounding, free_port, timeless

ROOT = Path(__file__).parents[2]
TIMEOUT = 480
"""Seconds for all cases; a process that waits for the other for ever would be killed after them."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("sharding") / "found.pt"
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.sharding_cases", str(output)],
            cwd=ROOT,
            env={**os.environ, **common, "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], printed
    return torch.load(output, weights_only=False)


@pytest.fixture(scope="module")
def alone() -> Any:
    return sharding_cases.alone()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interventions", "uneven", "one_idle_process", "reference"])
def test_gradients_and_metrics_equal_those_of_one_process(found: Any, alone: Any, case: str) -> None:
    one, other = found[case], alone[case]
    assert len(one["gradients"]) == len(other["gradients"]) > 0
    for step, reference in zip(one["gradients"], other["gradients"], strict=True):
        assert max(value.abs().max().item() for value in reference) > 1e-3
        for value, expected in zip(step, reference, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert one["rewards"] == other["rewards"]
    assert_equal_but_for_rounding(one["metrics"], other["metrics"])


@pytest.mark.slow
def test_no_process_has_a_signal(found: Any) -> None:
    assert found["no_signal"]["gradients"] == []
    assert found["no_signal"]["metrics"]["updates/steps"] == 0


@pytest.mark.slow
def test_a_sharded_run_writes_what_one_process_writes(found: Any, alone: Any) -> None:
    one, other = found["run"], alone["run"]
    assert [(row["kind"], row["iteration"]) for row in one["rows"]] == [
        (row["kind"], row["iteration"]) for row in other["rows"]
    ]
    # The first iteration is the same but for rounding; Adam's first step amplifies rounding after it.
    for place in (0, 1):
        assert_equal_but_for_rounding(timeless(one["rows"][place]), timeless(other["rows"][place]), relative=1e-4)
    for name, value in one["saved"].items():
        assert torch.equal(value, one["kept"][name])  # the checkpoint is whole
        torch.testing.assert_close(value, other["kept"][name], rtol=0, atol=5e-3)


@pytest.mark.slow
def test_a_sharded_run_goes_on_from_its_checkpoint(found: Any) -> None:
    for name, value in found["resumed"].items():
        torch.testing.assert_close(value, found["run"]["kept"][name], rtol=0, atol=1e-6)


def test_adapters_are_not_sharded(composed: Callable[..., DictConfig]) -> None:
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    config = check(composed("trainer=fsdp_cpu", "policy.lora.rank=4"))
    with pytest.raises(SettingsError, match=r"trainer\.strategy=fsdp: must be ddp with policy\.lora\.rank=4"):
        check_parts(config)
