"""Two processes under DDP give what one process gives on the same tasks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp.experiment.build import Experiment
from rti_exp.training.distributed import (
    gather_from_ranks,
    interleave,
    leave,
    max_over_ranks,
    sum_over_ranks,
    world_size,
)
from rti_exp.training.metrics import is_timing
from tests.support.distributed_cases import cases

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """(what process 0 found, what the processes printed last)."""
    output = tmp_path_factory.mktemp("distributed") / "found.pt"
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.distributed_cases", str(output)],
            cwd=ROOT,
            env={**os.environ, **common, "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], printed
    return torch.load(output, weights_only=False), [text.strip().splitlines()[-1] for text, _ in printed]


@pytest.fixture(scope="module")
def alone() -> Any:
    return cases()


def assert_equal_but_for_rounding(found: Any, expected: Any, *, relative: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=relative, abs=1e-9), name
        else:
            assert found[name] == value, name


def timeless(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not is_timing(name)}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interventions", "uneven", "one_idle_process", "reference", "refills"])
def test_gradients_metrics_and_groups_equal_those_of_one_process(
    outputs: tuple[Any, list[str]], alone: Any, case: str
) -> None:
    found, expected = outputs[0][case], alone[case]
    assert len(found["gradients"]) == len(expected["gradients"]) > 0
    for step, reference in zip(found["gradients"], expected["gradients"], strict=True):
        assert max(one.abs().max().item() for one in reference) > 1e-3
        for one, other in zip(step, reference, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    # Refills of several rounds are listed rank by rank; their groups are the same.
    assert sorted(found["rewards"]) == sorted(expected["rewards"])
    if case == "refills":
        assert expected["metrics"]["groups/refills"] == 1
    else:
        assert found["rewards"] == expected["rewards"]
    assert_equal_but_for_rounding(found["metrics"], expected["metrics"])


@pytest.mark.slow
def test_no_process_has_a_signal(outputs: tuple[Any, list[str]]) -> None:
    found = outputs[0]["no_signal"]
    assert found["gradients"] == []
    assert found["metrics"]["updates/steps"] == 0
    assert found["metrics"]["groups/all_failed"] == 1.0


@pytest.mark.slow
def test_a_run_under_two_processes_writes_what_one_process_writes(outputs: tuple[Any, list[str]], alone: Any) -> None:
    found, expected = outputs[0]["run"], alone["run"]
    assert [(row["kind"], row["iteration"]) for row in found["rows"]] == [
        ("eval", 0),
        ("train", 1),
        ("eval", 1),
        ("train", 2),
        ("eval", 2),
    ]
    # The first iteration is the same but for rounding; Adam's first step amplifies rounding after it.
    for place in (0, 1):
        row, other = timeless(found["rows"][place]), timeless(expected["rows"][place])
        assert_equal_but_for_rounding(row, other, relative=1e-4)
    assert [task["task_id"] for task in found["rows"][2]["tasks"]] == [
        task["task_id"] for task in expected["rows"][2]["tasks"]
    ]
    for name, value in found["saved"].items():
        assert torch.equal(value, found["kept"][name])
        torch.testing.assert_close(value, expected["kept"][name], rtol=0, atol=5e-3)


@pytest.mark.slow
def test_a_loss_that_diverges_on_one_process_stops_all(outputs: tuple[Any, list[str]]) -> None:
    assert outputs[1] == ["iteration 1: the policy loss is nan; the weights were left as they were"] * 2


def test_alone_every_collective_is_the_identity() -> None:
    values = torch.tensor([1.0, -2.0])
    assert sum_over_ranks(values) is values
    assert max_over_ranks(values) is values
    assert gather_from_ranks("item") == ["item"]
    assert world_size() == 1


class Breaking:
    """A Trainer that joins a group, as Lightning's does, and ends in an error."""

    def fit(self, module: object, datamodule: object) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
        raise ValueError("diverged")


def test_a_process_leaves_its_group_however_training_ends() -> None:
    experiment = Experiment(module=None, data=None, trainer=Breaking(), heldout=[])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="diverged"):
        experiment.fit()
    assert not torch.distributed.is_initialized()
    leave()  # nothing to leave


def test_interleave_undoes_sharding() -> None:
    items = list("abcdefg")
    for ranks in (1, 2, 3, 7, 9):
        assert interleave([items[rank::ranks] for rank in range(ranks)]) == items
