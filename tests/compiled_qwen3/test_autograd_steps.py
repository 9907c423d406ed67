"""The autograd steps against the plain formulas in double precision, against numbers by hand, and with NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rti_exp.compiled_qwen3.autograd_steps import (
    chosen_log_probs,
    gated,
    linear,
    normed_linear,
    packed_attention,
    rotated_heads,
)
from rti_exp.compiled_qwen3.packing import pack
from rti_exp.models import head


def assert_agree(
    step: Callable[..., Tensor], formula: Callable[..., Tensor], *inputs: Tensor, scale: float = 1.0
) -> None:
    """Values and gradients of the step in float32 are those of the formula in float64."""
    results: list[list[Tensor]] = []
    for function, dtype in ((step, torch.float32), (formula, torch.float64)):
        leaves = [tensor.detach().clone().to(dtype).requires_grad_() for tensor in inputs]
        output = function(*leaves)
        weights = torch.linspace(-1, 1, output.numel(), dtype=dtype).view_as(output)
        (output * weights).sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    assert len(results[0]) == len(inputs) + 1
    for value, expected in zip(*results, strict=True):
        assert expected.abs().max() > 1e-2
        assert (value - expected).abs().max() <= 3e-6 * scale * expected.abs().max()


def normed(states: Tensor) -> Tensor:
    return states * (states.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()


@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize(("width", "columns"), [(128, 64), (33, 5)])
def test_normed_linear(rows: int, width: int, columns: int) -> None:
    inputs = torch.randn(rows, width), torch.randn(columns, width)
    assert_agree(
        lambda states, weight: normed_linear(states, weight, 1e-6),
        lambda states, weight: normed(states) @ weight.T,
        *inputs,
    )


@pytest.mark.parametrize("rows", [1, 40])
def test_linear(rows: int) -> None:
    inputs = torch.randn(rows, 48), torch.randn(20, 48), torch.randn(rows, 20)
    assert_agree(linear, lambda states, weight, added: states @ weight.T + added, *inputs)
    assert_agree(linear, lambda states, weight: states @ weight.T, *inputs[:2])


@pytest.mark.parametrize("half", [1, 17, 256])
def test_gated(half: int) -> None:
    def formula(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=1)
        return functional.silu(gate) * up

    assert_agree(gated, formula, 4 * torch.randn(5, 2 * half))


@pytest.mark.parametrize("width", [2, 32, 96])
def test_rotated_heads(width: int) -> None:
    angles = 6 * torch.rand(7, width // 2, dtype=torch.float64)

    def step(heads: Tensor, weight: Tensor) -> Tensor:
        return rotated_heads(heads, weight, angles.cos().float(), angles.sin().float(), 1e-6)

    def formula(heads: Tensor, weight: Tensor) -> Tensor:
        first, second = (normed(heads[:, :3]) * weight).chunk(2, dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return torch.cat((rotated, heads[:, 3:]), dim=1)

    assert_agree(step, formula, torch.randn(7, 5, width), torch.randn(3, width), scale=3)


@pytest.mark.parametrize("vocabulary", [2, 961])
def test_chosen_log_probs(vocabulary: int) -> None:
    targets, logits = torch.randint(vocabulary, (9,)), 5 * torch.randn(9, vocabulary)
    assert_agree(
        lambda values: chosen_log_probs(values, targets)[0],
        lambda values: head.chosen_log_probs(values, targets)[0],
        logits,
    )
    entropy, expected = chosen_log_probs(logits, targets)[1], head.chosen_log_probs(logits.double(), targets)[1]
    torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-6)


def test_a_normed_linear_layer_by_hand() -> None:
    """rms of (3, 4) is sqrt(12.5); times (1, 2): 11 / sqrt(12.5)."""
    output = normed_linear(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 2.0]]), 0.0)
    assert output.item() == pytest.approx(11 / math.sqrt(12.5))


def test_rotation_by_hand() -> None:
    """A query of (3, 4), rms sqrt(12.5), weights (1, 2), a quarter turn: (a, b) -> (-b, a). The value is unchanged."""
    heads = torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    cos, sin = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    query, value = rotated_heads(heads, torch.tensor([[1.0, 2.0]]), cos, sin, 0.0)[0].tolist()
    assert query == pytest.approx([-8 / math.sqrt(12.5), 3 / math.sqrt(12.5)])
    assert value == [5.0, 6.0]
    # Of four components the first is paired with the third; here only the second pair is rotated.
    cos, sin = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    rotated = rotated_heads(torch.tensor([[[1.0, -1.0, 1.0, 1.0]]]), torch.ones(1, 4), cos, sin, 0.0)
    assert rotated.flatten().tolist() == pytest.approx([1.0, -1.0, 1.0, -1.0])


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


def test_a_gate_far_from_zero_is_closed_or_open() -> None:
    """silu(-200) is -3e-85, silu(200) is 200; their slopes are 0 and 1."""
    states = torch.tensor([[-200.0, 200.0, 3.0, 5.0]], requires_grad=True)
    output = gated(states)
    assert output[0].tolist() == pytest.approx([0.0, 1000.0], abs=1e-30)
    output.sum().backward()
    assert states.grad is not None
    assert states.grad[0].tolist() == pytest.approx([0.0, 5.0, 0.0, 200.0], abs=1e-30)


@pytest.mark.parametrize("token", [-1, 3, 10**6])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(IndexError, match="a token beyond the vocabulary of 3"):
        chosen_log_probs(torch.zeros(2, 3), torch.tensor([0, token]))


def attention_by_formula(heads_NAW: Tensor, rows: list[list[int]], heads: int, key_heads: int) -> Tensor:
    """Each token of each row from softmax over its own row; rows that begin alike give a token the same result."""
    packing = pack(rows)
    outputs: dict[int, Tensor] = {}
    for row, tokens in zip(rows, packing.tokens_BT.tolist(), strict=True):
        states = heads_NAW[tokens[: len(row)]]
        queries, keys, values = states.split((heads, key_heads, key_heads), dim=1)
        keys, values = (part.repeat_interleave(heads // key_heads, dim=1) for part in (keys, values))
        scores = torch.einsum("thw,shw->hts", queries, keys) / heads_NAW.shape[2] ** 0.5
        weights = scores.masked_fill(torch.ones(len(row), len(row)).triu(1).bool(), -math.inf).softmax(-1)
        outputs |= dict(zip(tokens, torch.einsum("hts,shw->thw", weights, values), strict=False))
    return torch.stack([outputs[token] for token in range(len(heads_NAW))]).flatten(1)


ROWS: dict[str, list[list[int]]] = {
    "one token": [[4]],
    "blocks": [list(range(150)), list(range(200, 275))],
    "alike": [[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 7] + [8] * 40, [1, 2, 7] + [8] * 33 + [9] * 20, [6] * 9, [6] * 9],
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("heads", "key_heads", "width"), [(4, 2, 32), (3, 3, 10), (3, 1, 64)])
def test_attention_is_the_formulas(name: str, heads: int, key_heads: int, width: int) -> None:
    rows = ROWS[name]
    packing = pack(rows)
    assert_agree(
        lambda states: packed_attention(states, packing, heads, key_heads),
        lambda states: attention_by_formula(states, rows, heads, key_heads),
        torch.randn(len(packing.token_ids_N), heads + 2 * key_heads, width),
        scale=3,
    )


def test_attention_by_hand() -> None:
    """Two tokens, keys e and 0, queries 0 and sqrt(32) log(3) e: the second weighs 3 to 1. Values 10 and 20."""
    heads_NAW = torch.zeros(2, 3, 32)
    heads_NAW[0, 1, 5], heads_NAW[1, 0, 5] = 1.0, math.sqrt(32) * math.log(3)
    heads_NAW[0, 2], heads_NAW[1, 2] = 10.0, 20.0
    output = packed_attention(heads_NAW, pack([[1, 2]]), 1, 1)
    assert output[:, 7].tolist() == pytest.approx([10.0, 12.5])


def test_scores_of_any_size() -> None:
    """The second of two keys is ahead by 1e5; before it, the first is all there is."""
    heads_NAW = torch.zeros(2, 3, 32)
    heads_NAW[:, 0, 0], heads_NAW[1, 1, 0] = 1e3, 1e3
    heads_NAW[0, 2], heads_NAW[1, 2] = 1.0, 2.0
    assert packed_attention(heads_NAW, pack([[1, 2]]), 1, 1)[:, 0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("part", [0, 2, 3])
def test_attention_over_nan_is_nan(part: int) -> None:
    """In a query, a key or a value of token 3. An earlier token weighs that value by 0, and 0 * NaN is NaN."""
    heads_NAW = torch.randn(6, 4, 32)
    heads_NAW[3, part, 1] = math.nan
    heads_NAW.requires_grad_()
    output = packed_attention(heads_NAW, pack([[1, 2, 3, 4, 5, 6]]), 2, 1)
    assert part == 3 or output[:3].isfinite().all()
    assert output[3].isnan().any()
    output.sum().backward()
    assert heads_NAW.grad is not None
    assert heads_NAW.grad.isnan().any()


@pytest.mark.parametrize(
    "function",
    [
        lambda states: normed_linear(states, torch.ones(2, 32), 1e-6),
        gated,
        lambda states: rotated_heads(states[:, None], torch.ones(1, 32), torch.ones(3, 16), torch.zeros(3, 16), 1e-6),
        lambda states: chosen_log_probs(states, torch.tensor([0, 1, 2]))[0],
        lambda states: chosen_log_probs(states, torch.tensor([0, 1, 2]))[1],
    ],
)
@pytest.mark.parametrize("place", [0, 9])
def test_nan_stays_nan(function: Callable[[Tensor], Tensor], place: int) -> None:
    states = torch.randn(3, 32)
    states[1, place] = math.nan
    states.requires_grad_()
    output = function(states)
    assert [bool(row.isnan().any()) for row in output] == [False, True, False]
    if output.requires_grad:
        output.sum().backward()
        assert states.grad is not None
        assert states.grad[1].isnan().any()
