"""Matmuls by oneDNN."""

from __future__ import annotations

import pytest
import torch

from rti_exp.compiled_qwen3 import matmul
from rti_exp.compiled_qwen3.matmul import padded, times_transposed, transposed_times


@pytest.mark.parametrize("rows", [1, 16, 200])
@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("inference", [True, False])
def test_products_of_integers_are_exact(
    monkeypatch: pytest.MonkeyPatch, rows: int, onednn: bool, inference: bool
) -> None:
    monkeypatch.setattr(matmul, "_ONEDNN", onednn and matmul._ONEDNN)
    with torch.inference_mode(inference):
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


def test_nan_stays_nan() -> None:
    left = torch.ones(20, 4)
    left[7, 2] = torch.nan
    assert times_transposed(left, torch.ones(3, 4)).isnan().any(1).nonzero().flatten().tolist() == [7]
    assert transposed_times(torch.ones(20, 3), left).isnan().any(0).nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize(("count", "rows"), [(1, 64), (64, 64), (65, 128), (1024, 1024), (1025, 1152), (2049, 2304)])
def test_counts_are_rounded_up_by_an_eighth_at_most(count: int, rows: int) -> None:
    values = padded(torch.arange(1, count + 1), least=64, parts=8)
    assert len(values) == rows
    assert values[:count].tolist() == list(range(1, count + 1))
    assert not values[count:].any()
    assert padded(torch.ones(count, 3), least=64, parts=8).shape == (rows, 3)
