"""Matmuls by oneDNN, where it is taken and where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rti_exp.compiled_qwen3 import matmul
from rti_exp.compiled_qwen3.matmul import times_transposed, transposed_times


@pytest.mark.parametrize("rows", [1, 15, 16, 200])
@pytest.mark.parametrize("onednn", [True, False])
def test_products_of_whole_numbers_are_exact(monkeypatch: pytest.MonkeyPatch, rows: int, onednn: bool) -> None:
    works = matmul._works()
    monkeypatch.setattr(matmul, "_works", lambda: works and onednn)
    torch.manual_seed(0)
    left, right = torch.randint(-9, 9, (rows, 24)).float(), torch.randint(-9, 9, (40, 24)).float()
    expected = (left.double() @ right.double().T).float()
    assert torch.equal(times_transposed(left, right), expected)
    assert torch.equal(times_transposed(left, right.T.contiguous().T), expected)
    assert torch.equal(times_transposed(left.T.contiguous().T, right), expected)
    assert torch.equal(transposed_times(expected, left), (expected.double().T @ left.double()).float())


def test_by_hand() -> None:
    left, right = torch.tensor([[1.0, 2.0]] * 16), torch.tensor([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    assert times_transposed(left, right).tolist() == [[11.0, 17.0, 23.0]] * 16
    assert transposed_times(left, left).tolist() == [[16.0, 32.0], [32.0, 64.0]]


def test_other_numbers_take_torchs() -> None:
    left, right = torch.ones(20, 2, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64)
    assert times_transposed(left, right).dtype is torch.float64
    assert transposed_times(left, left).tolist() == [[20.0, 20.0]] * 2
    with FakeTensorMode():
        assert times_transposed(torch.ones(20, 2), torch.ones(3, 2)).shape == (20, 3)
    assert times_transposed(torch.ones(20, 2, device="meta"), torch.ones(3, 2, device="meta")).shape == (20, 3)


def test_not_a_number_stays() -> None:
    left = torch.ones(20, 4)
    left[7, 2] = torch.nan
    assert times_transposed(left, torch.ones(3, 4)).isnan().any(1).nonzero().flatten().tolist() == [7]
    assert transposed_times(torch.ones(20, 3), left).isnan().any(0).nonzero().flatten().tolist() == [2]


@pytest.fixture
def not_tried_out() -> Iterator[None]:
    matmul._works.cache_clear()
    yield
    matmul._works.cache_clear()


@pytest.mark.usefixtures("not_tried_out")
@pytest.mark.parametrize("name", ["_times_transposed", "_transposed_times"])
@pytest.mark.parametrize(
    "error", [AttributeError("no such operator"), RuntimeError("expected 5 arguments\nDeclared: 6")]
)
def test_a_torch_that_has_them_otherwise_is_told_in_a_line_and_its_own_are_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, error: Exception
) -> None:
    def other(left: Tensor, right: Tensor) -> Tensor:
        raise error

    monkeypatch.setattr(matmul, name, other)
    left = torch.tensor([[1.0, 2.0]] * 16)
    assert times_transposed(left, torch.tensor([[3.0, 4.0]])).tolist() == [[11.0]] * 16
    assert transposed_times(left, left).tolist() == [[16.0, 32.0], [32.0, 64.0]]
    (line,) = caplog.messages
    assert line.startswith("oneDNN's matmuls do not work here")
    assert "\n" not in line


@pytest.mark.usefixtures("not_tried_out")
def test_wrong_numbers_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_transposed_times", lambda left, right: left.T @ right + 1)
    left = torch.ones(16, 2)
    assert transposed_times(left, left).tolist() == [[16.0, 16.0]] * 2


def test_onednn_switched_off_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_times_transposed", "_transposed_times"):
        monkeypatch.setattr(matmul, name, lambda left, right: pytest.fail("taken"))
    left = torch.tensor([[1.0, 2.0]] * 16)
    with torch.backends.mkldnn.flags(enabled=False):
        assert times_transposed(left, torch.tensor([[3.0, 4.0]])).tolist() == [[11.0]] * 16
        assert transposed_times(left, left).tolist() == [[16.0, 32.0], [32.0, 64.0]]


@pytest.mark.usefixtures("not_tried_out")
def test_it_works_here_in_inference_mode_too() -> None:
    with torch.inference_mode():
        assert matmul._works()
