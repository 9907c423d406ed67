"""Attention over packed tokens: compiled, each token once; or in torch's operations, which needs rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from rti_exp.compiled_qwen3.fused import causal_attention, compiles
from rti_exp.compiled_qwen3.packing import Packing

_TILE = 32


def takes(heads_NAW: Tensor) -> bool:
    """Whether attention can be compiled for these heads."""
    return heads_NAW.shape[-1] % _TILE == 0 and compiles(heads_NAW)


def packed_attention(heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int) -> Tensor:
    """softmax(q k^T / sqrt(W)) v, [N, heads * W], a token seeing itself and what is before it in its row."""
    return _PackedAttention.apply(heads_NAW, packing, heads, key_heads)  # pyright: ignore[reportReturnType]


class _PackedAttention(Function):
    @staticmethod
    def forward(ctx: Any, heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int) -> Tensor:
        from rti_exp.compiled_qwen3.attention_kernels import attend

        made_NHW = heads_NAW.new_zeros((len(heads_NAW), heads, heads_NAW.shape[2]))
        normalizers_NH = heads_NAW.new_empty((len(heads_NAW), heads))
        ctx.given = (
            packing.rows_R4.numpy(),
            packing.tokens_P.numpy(),
            key_heads,
            np.float32(heads_NAW.shape[2] ** -0.5),
        )
        attend(heads_NAW.detach().numpy(), *ctx.given, made_NHW.numpy(), normalizers_NH.numpy())
        ctx.save_for_backward(heads_NAW, made_NHW, normalizers_NH)
        return made_NHW.flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        from rti_exp.compiled_qwen3.attention_kernels import attend_backward

        heads_NAW, made_NHW, normalizers_NH = ctx.saved_tensors
        gradient_NHW = gradients[0].contiguous().view_as(made_NHW)
        gradient_NAW = torch.zeros_like(heads_NAW)
        numbers = (one.numpy() for one in (made_NHW, normalizers_NH, gradient_NHW, gradient_NAW))
        attend_backward(heads_NAW.detach().numpy(), *ctx.given, *numbers)
        return gradient_NAW, None, None, None


def attention_in_rows(
    heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int, *, largest_score: float
) -> Tensor:
    """The same, where a token is copied to each row that it stands in; `largest_score` as in `causal_attention`."""
    parts: Any = _ToRows.apply(heads_NAW, packing, heads, key_heads)
    found = [
        causal_attention(*parts[first : first + 3], largest_score=largest_score) for first in range(0, len(parts), 3)
    ]
    return _FromRows.apply(packing, *found)  # pyright: ignore[reportReturnType]


class _ToRows(Function):
    """[N, A, W] -> for each chunk its queries, keys and values, [B, heads, T, W] each."""

    @staticmethod
    def forward(ctx: Any, heads_NAW: Tensor, packing: Packing, heads: int, key_heads: int) -> tuple[Tensor, ...]:
        ctx.packing, ctx.sizes = packing, (heads, key_heads, key_heads)
        placed_PAW = heads_NAW if packing.in_place else heads_NAW.index_select(0, packing.tokens_P)
        return tuple(part for chunk in _by_chunk(placed_PAW, packing) for part in chunk.split(ctx.sizes, dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        packing: Packing = ctx.packing
        placed_PAW = gradients[0].new_empty((packing.places, sum(ctx.sizes), gradients[0].shape[-1]))
        parts = [part for chunk in _by_chunk(placed_PAW, packing) for part in chunk.split(ctx.sizes, dim=1)]
        for part, gradient in zip(parts, gradients, strict=True):
            part.copy_(gradient)
        if packing.in_place:
            return placed_PAW, None, None, None
        made = placed_PAW.index_select(0, packing.own_places_N)
        if len(packing.shared_places_S):
            made.index_add_(0, packing.shared_tokens_S, placed_PAW.index_select(0, packing.shared_places_S))
        return made, None, None, None


class _FromRows(Function):
    """For each chunk [B, H, T, W] -> [N, H * W], each token's from its own place."""

    @staticmethod
    def forward(ctx: Any, packing: Packing, *chunks: Tensor) -> Tensor:
        ctx.packing, ctx.heads = packing, chunks[0].shape[1]
        placed_PD = torch.cat([chunk.transpose(1, 2).flatten(2).flatten(0, 1) for chunk in chunks])
        return placed_PD if packing.in_place else placed_PD.index_select(0, packing.own_places_N)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        packing: Packing = ctx.packing
        gradient_ND = gradients[0]
        if not packing.in_place:
            empty_PD = gradient_ND.new_zeros((packing.places, gradient_ND.shape[1]))
            gradient_ND = empty_PD.index_copy_(0, packing.own_places_N, gradient_ND)
        return None, *_by_chunk(gradient_ND.unflatten(1, (ctx.heads, -1)), packing)


def _by_chunk(placed_PAW: Tensor, packing: Packing) -> list[Tensor]:
    """Views [B, A, T, W]."""
    sizes = [rows * length for rows, length in packing.chunks]
    return [
        part.unflatten(0, shape).transpose(1, 2)
        for part, shape in zip(placed_PAW.split(sizes), packing.chunks, strict=True)
    ]
