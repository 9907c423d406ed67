"""Two processes under FSDP2 give what one process gives on the same tasks, and none waits for the other for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.checks import check_parts
from tests.support import sharding_cases
from tests.support.two_ranks import assert_equal_but_for_rounding, assert_gradients_equal, run_two_ranks, timeless

TIMEOUT = 480
"""Seconds for all cases; ranks that wait for each other forever are killed after them."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    output = tmp_path_factory.mktemp("sharding") / "results.pt"
    return run_two_ranks("tests.support.sharding_cases", output, seconds=TIMEOUT)[0]


@pytest.fixture(scope="module")
def alone() -> Any:
    return sharding_cases.alone()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interventions", "uneven", "one_idle_process", "reference"])
def test_gradients_and_metrics_equal_those_of_one_process(found: Any, alone: Any, case: str) -> None:
    one, other = found[case], alone[case]
    assert_gradients_equal(one["gradients"], other["gradients"])
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
