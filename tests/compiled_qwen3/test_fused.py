"""Each fused step against numbers worked out by hand, and its gradient against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rti_exp.compiled_qwen3 import fused
from rti_exp.compiled_qwen3.fused import SAFE_SCORE, causal_attention, gated, linear, normed_linear, turned_heads
from rti_exp.models.head import chosen_log_probs


@pytest.fixture(autouse=True, params=["compiled", "torch's"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 is compiled where Numba is installed and there is one thread; float64 never is."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if request.param == "torch's":
        monkeypatch.setattr(fused, "can_compile", lambda: False)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def holds(function: Callable[..., Tensor], *inputs: Tensor) -> bool:
    return torch.autograd.gradcheck(function, inputs)


def test_normed_linear() -> None:
    # rms of (3, 4) is sqrt(12.5); times (1, 2): 11 / sqrt(12.5).
    made = normed_linear(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]), 0.0)
    assert made.item() == pytest.approx(11 / math.sqrt(12.5))
    assert holds(lambda states, weight: normed_linear(states, weight, 0.1), randn(3, 4), randn(5, 4))


def test_linear() -> None:
    made = linear(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0]]))
    assert made.tolist() == [[16.0]]
    assert holds(linear, randn(3, 4), randn(5, 4), randn(3, 5))
    assert holds(linear, randn(3, 4), randn(5, 4))


def test_gated() -> None:
    # silu(1) = 1 / (1 + e^-1) = .7310586, silu(0) = 0.
    made = gated(torch.tensor([[1.0, 0.0, 3.0, 5.0]]))
    assert made.tolist() == [[pytest.approx(3 * 0.7310586), 0.0]]
    assert holds(gated, randn(3, 8))


def test_turned_heads() -> None:
    # One query of (3, 4), rms sqrt(12.5), weights (1, 2), a quarter turn: (a, b) -> (-b, a). The value is as it was.
    heads = torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    cos, sin = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    query, value = turned_heads(heads, torch.tensor([[1.0, 2.0]]), cos, sin, 0.0)[0].tolist()
    assert query == pytest.approx([-8 / math.sqrt(12.5), 3 / math.sqrt(12.5)])
    assert value == [5.0, 6.0]
    # Of four components the first goes with the third, the second with the fourth; here only the second pair is turned.
    cos, sin = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    turned = turned_heads(torch.tensor([[[1.0, -1.0, 1.0, 1.0]]]), torch.ones(1, 4), cos, sin, 0.0)
    assert turned.flatten().tolist() == pytest.approx([1.0, -1.0, 1.0, -1.0])
    angles = torch.rand(3, 2, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    assert holds(lambda states, weight: turned_heads(states, weight, cos, sin, 0.1), randn(3, 4, 4), randn(2, 4))


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_BLOCK", 2)
    monkeypatch.setattr(fused, "_SHORTEST", 1)


@pytest.mark.usefixtures("short_blocks")
def test_causal_attention_by_hand() -> None:
    # Scores of the second query, width 1: 2 * 1 and 2 * 0, so weights e^2 and 1; values 10 and 20.
    queries, keys, values = (torch.tensor(x).view(1, 1, 2, 1) for x in ([5.0, 2.0], [1.0, 0.0], [10.0, 20.0]))
    found = causal_attention(queries, keys, values, largest_score=5.0).flatten().tolist()
    assert found == pytest.approx([10.0, (10 * math.exp(2) + 20) / (math.exp(2) + 1)])


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("largest", [1.0, 2 * SAFE_SCORE])
def test_causal_attention_has_the_gradient_of_torchs(largest: float) -> None:
    queries, keys, values = randn(2, 4, 5, 3), randn(2, 2, 5, 3), randn(2, 2, 5, 3)
    own = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(causal_attention(queries, keys, values, largest_score=largest), own)
    assert holds(lambda *parts: causal_attention(*parts, largest_score=largest), queries, keys, values)


@pytest.mark.usefixtures("short_blocks")
def test_large_scores_do_not_overflow() -> None:
    """1e4 and, of a key that comes later, 1e5: the first query sees itself alone."""
    queries, keys, values = (torch.tensor(x).view(1, 1, 2, 1) for x in ([100.0, 100.0], [100.0, 1000.0], [1.0, 2.0]))
    assert causal_attention(queries, keys, values, largest_score=1e5).flatten().tolist() == [1.0, 2.0]


def test_which_rows_take_torchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def attention(queries: Tensor, *_: Tensor, **__: object) -> Tensor:
        taken.append(queries.shape[2])
        return queries

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    for length in (96, 97, 512, 513):
        heads = torch.zeros(1, 1, length, 2)
        causal_attention(heads, heads, heads, largest_score=1.0)
    assert taken == [96, 513]


def test_chosen_log_probs() -> None:
    # Logits (0, 0, 0) and (2, 1, 0): log 3 and log(e^2 + e + 1) = 2.40760596.
    log_probs, entropy = chosen_log_probs(torch.tensor([[0.0, 0.0, 0.0], [2.0, 1.0, 0.0]]), torch.tensor([2, 0]))
    assert log_probs.tolist() == pytest.approx([-1.0986123, 2.0 - 2.4076060])
    # Of the second, probabilities .66524, .24473, .09003.
    assert entropy.tolist() == pytest.approx([1.0986123, 0.8323956], abs=1e-6)
    targets = torch.tensor([1, 1, 3])
    assert holds(lambda logits: chosen_log_probs(logits, targets)[0], randn(3, 4))
    assert not chosen_log_probs(randn(3, 4), targets)[1].requires_grad


def test_an_impossible_token_adds_no_entropy() -> None:
    _, entropy = chosen_log_probs(torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([0]))
    assert entropy.item() == pytest.approx(math.log(2))
