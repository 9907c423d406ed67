"""The compiled steps against torch's operations in double precision, against numbers by hand, and with NaN."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from rti_exp.compiled_qwen3 import fused, packed_attention
from rti_exp.compiled_qwen3.compilation import can_compile
from rti_exp.compiled_qwen3.fused import compiles, gated, linear, normed_linear, turned_heads
from rti_exp.compiled_qwen3.packing import pack
from rti_exp.models.head import chosen_log_probs

pytestmark = pytest.mark.skipif(not can_compile(), reason="Numba does not work here")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def agrees(function: Callable[..., Tensor], *inputs: Tensor, scale: float = 1.0) -> None:
    """Values and gradients in float32 are those of float64, which takes torch's operations."""
    results: list[list[Tensor]] = []
    for dtype in (torch.float32, torch.float64):
        given = [one.detach().clone().to(dtype).requires_grad_() for one in inputs]
        assert compiles(given[0]) is (dtype is torch.float32)
        made = function(*given)
        weights = torch.linspace(-1, 1, made.numel(), dtype=dtype).view_as(made)
        (made * weights).sum().backward()
        results.append([made, *(one.grad for one in given if one.grad is not None)])
    assert len(results[0]) == len(inputs) + 1
    for found, expected in zip(*results, strict=True):
        assert expected.abs().max() > 1e-2
        assert (found - expected).abs().max() <= 3e-6 * scale * expected.abs().max()


@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize(("width", "columns"), [(128, 64), (33, 5)])
def test_normed_linear(rows: int, width: int, columns: int) -> None:
    states, weight = torch.randn(rows, width), torch.randn(columns, width)
    agrees(lambda one, other: normed_linear(one, other, 1e-6), states, weight)


@pytest.mark.parametrize("rows", [1, 40])
def test_linear(rows: int) -> None:
    agrees(linear, torch.randn(rows, 48), torch.randn(20, 48), torch.randn(rows, 20))


@pytest.mark.parametrize("half", [1, 17, 256])
def test_gated(half: int) -> None:
    agrees(gated, 4 * torch.randn(5, 2 * half))


@pytest.mark.parametrize("width", [2, 32, 96])
def test_turned_heads(width: int) -> None:
    angles = 6 * torch.rand(7, width // 2, dtype=torch.float64)

    def turned(heads: Tensor, weight: Tensor) -> Tensor:
        return turned_heads(heads, weight, angles.cos().to(heads.dtype), angles.sin().to(heads.dtype), 1e-6)

    agrees(turned, torch.randn(7, 5, width), torch.randn(3, width), scale=3)


@pytest.mark.parametrize("vocabulary", [2, 961])
def test_chosen_log_probs(vocabulary: int) -> None:
    targets = torch.randint(vocabulary, (9,))
    logits = 5 * torch.randn(9, vocabulary)
    agrees(lambda one: chosen_log_probs(one, targets)[0], logits)
    entropies = [chosen_log_probs(logits.to(dtype), targets)[1] for dtype in (torch.float32, torch.float64)]
    torch.testing.assert_close(entropies[0].double(), entropies[1], rtol=1e-5, atol=1e-6)


def test_probabilities_that_vanish() -> None:
    """Logits 0, -200 and minus infinity: the first is certain."""
    logits = torch.tensor([[0.0, -200.0, -math.inf]] * 2)
    log_probs, entropy = chosen_log_probs(logits, torch.tensor([0, 1]))
    assert log_probs.tolist() == [0.0, -200.0]
    assert entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-30)


def test_the_largest_logit_need_not_be_the_first() -> None:
    logits = torch.tensor([[0.0, 200.0, -50.0]] * 2, requires_grad=True)
    log_probs, entropy = chosen_log_probs(logits, torch.tensor([0, 1]))
    assert log_probs.tolist() == [-200.0, 0.0]
    assert entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-30)
    log_probs.sum().backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([1.0, -1.0, 0.0])


def test_a_gate_far_from_zero_is_shut_or_open() -> None:
    """silu(-200) is -3e-85, silu(200) is 200; their slopes are 0 and 1."""
    states = torch.tensor([[-200.0, 200.0, 3.0, 5.0]], requires_grad=True)
    made = gated(states)
    assert made[0].tolist() == pytest.approx([0.0, 1000.0], abs=1e-30)
    made.sum().backward()
    assert states.grad is not None
    assert states.grad[0].tolist() == pytest.approx([0.0, 5.0, 0.0, 200.0], abs=1e-30)


@pytest.mark.parametrize("beyond", [-1, 3, 10**6])
def test_a_token_that_is_none_is_refused(beyond: int) -> None:
    with pytest.raises(IndexError, match="a token beyond the vocabulary of 3"):
        chosen_log_probs(torch.zeros(2, 3), torch.tensor([0, beyond]))


def by_formula(heads_NAW: Tensor, rows: list[list[int]], heads: int, key_heads: int) -> Tensor:
    """Each token of each row from softmax over its own row; rows that begin alike give a token the same result."""
    packing = pack(rows)
    made: dict[int, Tensor] = {}
    for row, tokens in zip(rows, packing.tokens_BT.tolist(), strict=True):
        states = heads_NAW[tokens[: len(row)]]
        queries, keys, values = states.split((heads, key_heads, key_heads), dim=1)
        keys, values = (one.repeat_interleave(heads // key_heads, dim=1) for one in (keys, values))
        scores = torch.einsum("thw,shw->hts", queries, keys) / heads_NAW.shape[2] ** 0.5
        weights = scores.masked_fill(torch.ones(len(row), len(row)).triu(1).bool(), -math.inf).softmax(-1)
        made |= dict(zip(tokens, torch.einsum("hts,shw->thw", weights, values), strict=False))
    return torch.stack([made[token] for token in range(len(heads_NAW))]).flatten(1)


ROWS: dict[str, list[list[int]]] = {
    "one token": [[4]],
    "blocks": [list(range(150)), list(range(200, 275))],
    "alike": [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 7] + [8] * 40, [1, 2, 7] + [8] * 33 + [9] * 20, [6] * 9, [6] * 9],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 2, 32), (3, 3, 32), (3, 1, 64)])
def test_attention_is_the_formulas(name: str, heads: int, key_heads: int, width: int) -> None:
    rows = ROWS[name]
    packing = pack(rows)

    def attention(heads_NAW: Tensor) -> Tensor:
        if heads_NAW.dtype is torch.float64:
            return by_formula(heads_NAW, rows, heads, key_heads)
        assert packed_attention.takes(heads_NAW)
        return packed_attention.packed_attention(heads_NAW, packing, heads, key_heads)

    agrees(attention, torch.randn(len(packing.token_ids_N), heads + 2 * key_heads, width), scale=3)


def test_attention_by_hand() -> None:
    """Two tokens, keys e and 0, queries 0 and sqrt(32) log(3) e: the second weighs 3 to 1. Values 10 and 20."""
    heads_NAW = torch.zeros(2, 3, 32)
    heads_NAW[0, 1, 5], heads_NAW[1, 0, 5] = 1.0, math.sqrt(32) * math.log(3)
    heads_NAW[0, 2], heads_NAW[1, 2] = 10.0, 20.0
    made = packed_attention.packed_attention(heads_NAW, pack([[1, 2]]), 1, 1)
    assert made[:, 7].tolist() == pytest.approx([10.0, 12.5])


def test_scores_of_any_size() -> None:
    """The second of two keys is ahead by 1e5; before it, the first is all there is."""
    heads_NAW = torch.zeros(2, 3, 32)
    heads_NAW[:, 0, 0], heads_NAW[1, 1, 0] = 1e3, 1e3
    heads_NAW[0, 2], heads_NAW[1, 2] = 1.0, 2.0
    assert packed_attention.packed_attention(heads_NAW, pack([[1, 2]]), 1, 1)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("part", [0, 2, 3])
def test_attention_over_nan_is_nan(part: int) -> None:
    """In a query, a key or a value of token 3. Before it a value of weight 0 counts as in a matmul: 0 * NaN is NaN."""
    heads_NAW = torch.randn(6, 4, 32)
    heads_NAW[3, part, 1] = math.nan
    heads_NAW.requires_grad_()
    made = packed_attention.packed_attention(heads_NAW, pack([[1, 2, 3, 4, 5, 6]]), 2, 1)
    assert part == 3 or made[:3].isfinite().all()
    assert made[3].isnan().any()
    made.sum().backward()
    assert heads_NAW.grad is not None
    assert heads_NAW.grad.isnan().any()


@pytest.mark.parametrize(
    "function",
    [
        lambda states: normed_linear(states, torch.ones(2, 32), 1e-6),
        gated,
        lambda states: turned_heads(states[:, None], torch.ones(1, 32), torch.ones(3, 16), torch.zeros(3, 16), 1e-6),
        lambda states: chosen_log_probs(states, torch.tensor([0, 1, 2]))[0],
        lambda states: chosen_log_probs(states, torch.tensor([0, 1, 2]))[1],
    ],
)
@pytest.mark.parametrize("place", [0, 9])
def test_nan_stays_nan(function: Callable[[Tensor], Tensor], place: int) -> None:
    states = torch.randn(3, 32)
    states[1, place] = math.nan
    states.requires_grad_()
    made = function(states)
    assert [bool(row.isnan().any()) for row in made] == [False, True, False]
    if made.requires_grad:
        made.sum().backward()
        assert states.grad is not None
        assert states.grad[1].isnan().any()


def test_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.zeros(4, 3, 32)
    assert compiles(states)
    assert packed_attention.takes(states)
    assert not packed_attention.takes(states[..., :8].contiguous())
    for other in (states.double(), states.bfloat16(), states.mT, torch.zeros(4, 32, device="meta")):
        assert not compiles(states, other)
    torch.set_num_threads(2)
    assert not compiles(states)
    torch.set_num_threads(1)
    monkeypatch.setattr(fused, "can_compile", lambda: False)
    assert not compiles(states)
