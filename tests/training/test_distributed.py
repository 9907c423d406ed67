"""Two processes under DDP give what one process gives on the same tasks."""

from __future__ import annotations

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
from tests.support.distributed_cases import cases
from tests.support.two_ranks import (
    assert_equal_but_for_rounding,
    assert_gradients_equal,
    free_port,
    run_two_ranks,
    timeless,
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """(the results of rank 0, the last line that each rank printed)."""
    output = tmp_path_factory.mktemp("distributed") / "results.pt"
    results, printed = run_two_ranks("tests.support.distributed_cases", output, seconds=240)
    return results, [text.strip().splitlines()[-1] for text in printed]


@pytest.fixture(scope="module")
def alone() -> Any:
    return cases()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interventions", "uneven", "one_idle_process", "reference", "refills"])
def test_gradients_metrics_and_groups_equal_those_of_one_process(
    outputs: tuple[Any, list[str]], alone: Any, case: str
) -> None:
    results, expected = outputs[0][case], alone[case]
    assert_gradients_equal(results["gradients"], expected["gradients"])
    if case == "refills":
        assert expected["metrics"]["groups/refills"] == 1
    assert results["rewards"] == expected["rewards"]
    assert_equal_but_for_rounding(results["metrics"], expected["metrics"])


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
    assert outputs[1] == ["iteration 1: the policy loss is nan; the optimizer step was not taken"] * 2


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
