"""Parts of a decoder layer as single steps of autograd, on rows of packed tokens.

Each is the plain formula; what it saves over autograd's own way is passes over memory: of a small model's update a
third goes into norms, rotation and gates, not into matmuls. On one core in float32 they are compiled (`row_kernels`),
elsewhere torch's operations; tested against autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter, functional

from rti_exp.compiled_qwen3.compilation import can_compile
from rti_exp.compiled_qwen3.matmul import times_transposed, transposed_times

SAFE_SCORE = 40.0
"""Attention scores of at most this size need no maximum taken off before exp."""
_BLOCK = 48
"""Queries whose scores are computed at once: what follows their last one is not computed."""
_SHORTEST, _LONGEST = 97, 512
"""Other rows take torch's kernel, which is as fast on short ones and keeps no scores of long ones."""


def compiles(*tensors: Tensor) -> bool:
    """Whether the compiled steps take these: contiguous float32 on the CPU, with one thread, and Numba at hand."""
    if torch.get_num_threads() > 1 or not can_compile():
        return False
    return all(
        type(one) in (Tensor, Parameter)
        and one.dtype is torch.float32
        and one.device.type == "cpu"
        and one.is_contiguous()
        for one in tensors
    )


def kernels() -> Any:
    """The compiled steps; only where `compiles` is true."""
    from rti_exp.compiled_qwen3 import row_kernels

    return row_kernels


def normed_linear(states_ND: Tensor, weight_CD: Tensor, epsilon: float) -> Tensor:
    """x / rms(x) @ weight^T, [N, C]; a norm's own weight belongs into `weight_CD`: (W diag(w)) n = W (w n)."""
    return _NormedLinear.apply(states_ND, weight_CD, epsilon)  # pyright: ignore[reportReturnType]


class _NormedLinear(Function):
    @staticmethod
    def forward(ctx: Any, states_ND: Tensor, weight_CD: Tensor, epsilon: float) -> Tensor:
        normed_ND, scale_N1 = _normed(states_ND, epsilon)
        ctx.save_for_backward(normed_ND, scale_N1, weight_CD)
        return times_transposed(normed_ND, weight_CD)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        normed_ND, scale_N1, weight_CD = ctx.saved_tensors
        weight_gradient = transposed_times(gradients[0], normed_ND)
        return _unnormed(times_transposed(gradients[0], weight_CD.T), normed_ND, scale_N1), weight_gradient, None


def _normed(states: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) of the last axis, and 1 / rms(x)."""
    if states.ndim == 2 and compiles(states):
        normed, scale = torch.empty_like(states), states.new_empty((len(states), 1))
        kernels().norm(states.detach().numpy(), epsilon, normed.numpy(), scale.view(-1).numpy())
        return normed, scale
    scale = states.pow(2).mean(-1, keepdim=True).add_(epsilon).rsqrt_()
    return states * scale, scale


def _unnormed(gradient: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """Gradient of x from that of n = x / rms(x): scale * (g - n mean(n g)). Overwrites `gradient`."""
    if gradient.ndim == 2 and compiles(gradient, normed, scale):
        kernels().norm_backward(normed.numpy(), scale.view(-1).numpy(), gradient.numpy())
        return gradient
    along = (gradient * normed).mean(-1, keepdim=True)
    return gradient.addcmul_(normed, along, value=-1).mul_(scale)


def linear(inputs_NK: Tensor, weight_CK: Tensor, added_NC: Tensor | None = None) -> Tensor:
    """inputs @ weight^T + added, [N, C]."""
    return _Linear.apply(inputs_NK, weight_CK, added_NC)  # pyright: ignore[reportReturnType]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, inputs_NK: Tensor, weight_CK: Tensor, added_NC: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs_NK, weight_CK)
        made_NC = times_transposed(inputs_NK, weight_CK)
        return made_NC if added_NC is None else made_NC.add_(added_NC)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        inputs_NK, weight_CK = ctx.saved_tensors
        added_gradient = gradients[0] if ctx.needs_input_grad[2] else None
        inputs_gradient = times_transposed(gradients[0], weight_CK.T)
        return inputs_gradient, transposed_times(gradients[0], inputs_NK), added_gradient


def gated(gate_and_up_NF: Tensor) -> Tensor:
    """silu(first half of the columns) * second half, [N, F / 2]."""
    return _Gated.apply(gate_and_up_NF)  # pyright: ignore[reportReturnType]


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up_NF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_and_up_NF)
        gate, up = gate_and_up_NF.chunk(2, dim=1)
        if not compiles(gate_and_up_NF):
            return functional.silu(gate).mul_(up)
        made = gate_and_up_NF.new_empty(gate.shape)
        kernels().gate(gate_and_up_NF.detach().numpy(), made.numpy())
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gate_and_up_NF,) = ctx.saved_tensors
        gate, up = gate_and_up_NF.chunk(2, dim=1)
        made = torch.empty_like(gate_and_up_NF)
        if compiles(gate_and_up_NF, gradients[0]):
            kernels().gate_backward(*(one.detach().numpy() for one in (gate_and_up_NF, gradients[0], made)))
            return made
        gate_gradient, up_gradient = made.chunk(2, dim=1)
        share = torch.sigmoid(gate)
        silu = gate * share
        torch.mul(gradients[0], silu, out=up_gradient)
        # silu' = s + x s (1 - s)
        slope = share.addcmul_(silu, 1 - share)
        torch.mul(slope.mul_(up), gradients[0], out=gate_gradient)
        return made


def turned_heads(heads_NAW: Tensor, weight_MW: Tensor, cos_NP: Tensor, sin_NP: Tensor, epsilon: float) -> Tensor:
    """The first M heads normed, each by its weight, and rotated; the others as they are. [N, A, W].

    Args:
        heads_NAW: queries, keys, values; a pair to rotate is W / 2 apart.
        weight_MW: of queries and keys.
        cos_NP, sin_NP: of each token's angles, P = W / 2.
    """
    return _TurnedHeads.apply(heads_NAW, weight_MW, cos_NP, sin_NP, epsilon)  # pyright: ignore[reportReturnType]


def _turned(states_NMW: Tensor, cos_NP: Tensor, sin_NP: Tensor) -> Tensor:
    one, other = states_NMW.chunk(2, dim=-1)
    cos_N1P, sin_N1P = cos_NP[:, None], sin_NP[:, None]
    return torch.cat((one * cos_N1P - other * sin_N1P, other * cos_N1P + one * sin_N1P), dim=-1)


class _TurnedHeads(Function):
    @staticmethod
    def forward(
        ctx: Any, heads_NAW: Tensor, weight_MW: Tensor, cos_NP: Tensor, sin_NP: Tensor, epsilon: float
    ) -> Tensor:
        given = (heads_NAW, weight_MW, cos_NP, sin_NP)
        ctx.save_for_backward(*given)
        ctx.epsilon, count, made = epsilon, len(weight_MW), torch.empty_like(heads_NAW)
        if compiles(*given):
            kernels().turn(*(one.detach().numpy() for one in given), epsilon, made.numpy())
            return made
        made[:, :count] = _turned(_normed(heads_NAW[:, :count], epsilon)[0] * weight_MW, cos_NP, sin_NP)
        made[:, count:] = heads_NAW[:, count:]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        heads_NAW, weight_MW, cos_NP, sin_NP = given = ctx.saved_tensors
        count, made = len(weight_MW), gradients[0].clone()
        if compiles(*given, made):
            weight_gradient = torch.zeros_like(weight_MW)
            numbers = (one.detach().numpy() for one in given)
            kernels().turn_backward(*numbers, ctx.epsilon, made.numpy(), weight_gradient.numpy())
            return made, weight_gradient, None, None, None
        normed_NMW, scale_NM1 = _normed(heads_NAW[:, :count], ctx.epsilon)
        gradient_NMW = _turned(made[:, :count], cos_NP, -sin_NP)
        weight_gradient = (gradient_NMW * normed_NMW).sum(0)
        made[:, :count] = _unnormed(gradient_NMW.mul_(weight_MW), normed_NMW, scale_NM1)
        return made, weight_gradient, None, None, None


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor, *, largest_score: float) -> Tensor:
    """softmax(q k^T / sqrt(W)) v, a token seeing itself and what is before it; [B, heads, T, W].

    Args:
        queries: [B, heads, T, W].
        keys, values: [B, key heads, T, W]; as many queries' heads in a row share one.
        largest_score: no |q k^T| / sqrt(W) is larger.
    """
    if not _SHORTEST <= queries.shape[2] <= _LONGEST:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return _CausalAttention.apply(queries, keys, values, largest_score)  # pyright: ignore[reportReturnType]


class _CausalAttention(Function):
    """R rows are pairs of a row and a key head, whose queries of all G heads make one matmul with its keys."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, largest_score: float) -> Tensor:
        rows, heads, length, width = queries.shape
        grouped = queries.unflatten(1, (keys.shape[1], -1))
        keys_RTW, values_RTW = keys.flatten(0, 1), values.flatten(0, 1)
        made = torch.empty_like(grouped, memory_format=torch.contiguous_format)
        saved: list[Tensor] = []
        for start in range(0, length, _BLOCK):
            block = slice(start, min(start + _BLOCK, length))
            queries_RMW = (grouped[:, :, :, block] * width**-0.5).flatten(2, 3).flatten(0, 1)
            weights_RMT = torch.bmm(queries_RMW, keys_RTW[:, : block.stop].transpose(1, 2))
            _exponentials(weights_RMT, block, largest_score)
            sums_RM1 = weights_RMT.sum(-1, keepdim=True)
            found_RMW = torch.bmm(weights_RMT, values_RTW[:, : block.stop]).div_(sums_RM1)
            made[:, :, :, block] = found_RMW.view_as(made[:, :, :, block])
            if any(ctx.needs_input_grad):
                saved += [queries_RMW, weights_RMT, sums_RM1]
        ctx.save_for_backward(keys_RTW, values_RTW, made, *saved)
        return made.view(rows, heads, length, width)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        keys_RTW, values_RTW, made, *saved = ctx.saved_tensors
        rows, key_heads, group, length, width = made.shape
        gradient = gradients[0].unflatten(1, (key_heads, group))
        # d score = weight / sum * (g v^T - g o): with -g o beside g and a column of ones beside v it is one matmul.
        beside = torch.cat((gradient, -(gradient * made).sum(-1, keepdim=True)), dim=-1)
        values_and_ones = functional.pad(values_RTW, (0, 1), value=1.0)
        queries_gradient = torch.empty_like(made)
        keys_gradient, values_gradient = torch.zeros_like(keys_RTW), torch.zeros_like(values_RTW)
        for number, start in enumerate(range(0, length, _BLOCK)):
            block = slice(start, min(start + _BLOCK, length))
            queries_RMW, weights_RMT, sums_RM1 = saved[3 * number : 3 * number + 3]
            beside_RMX = beside[:, :, :, block].flatten(2, 3).flatten(0, 1) / sums_RM1
            values_gradient[:, : block.stop] += torch.bmm(weights_RMT.transpose(1, 2), beside_RMX[..., :width])
            scores_RMT = torch.bmm(beside_RMX, values_and_ones[:, : block.stop].transpose(1, 2)).mul_(weights_RMT)
            found_RMW = torch.bmm(scores_RMT, keys_RTW[:, : block.stop]).mul_(width**-0.5)
            queries_gradient[:, :, :, block] = found_RMW.view_as(made[:, :, :, block])
            keys_gradient[:, : block.stop] += torch.bmm(scores_RMT.transpose(1, 2), queries_RMW)
        unflat = (rows, key_heads, length, width)
        return (
            queries_gradient.view(rows, key_heads * group, length, width),
            keys_gradient.view(unflat),
            values_gradient.view(unflat),
            None,
        )


def _exponentials(scores_RMT: Tensor, block: slice, largest_score: float) -> None:
    """In place: exp of the scores of queries `block`, up to a factor for each row, 0 where the key comes later."""
    own = scores_RMT.unflatten(1, (-1, block.stop - block.start))[..., block]  # [R, G, block, block]
    if largest_score > SAFE_SCORE:
        later = torch.ones(own.shape[-2:], dtype=torch.bool, device=own.device).triu_(1)
        own.masked_fill_(later, -torch.inf)
        scores_RMT -= scores_RMT.amax(-1, keepdim=True)
    scores_RMT.exp_()
    own.tril_()
