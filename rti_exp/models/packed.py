"""Qwen3's decoder for training: over packed tokens, with the parts of `fused` in place of transformers' modules.

The same function of the same weights as the model's own forward pass, rounded otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from rti_exp.models.fused import causal_attention, gated, normed_linear, turned_heads
from rti_exp.models.packing import Packing
from rti_exp.models.qwen import PlainQwen3


class PackedDecoder(PlainQwen3):
    """Final hidden states of a plain Qwen3 (`rti_exp.models.qwen.is_plain_qwen3`), after its last norm.

    A norm's weight is multiplied into the linear layer behind it, whose matrices are put together where they have the
    same input. Within a head the two halves that rotation pairs are laid beside each other, in queries and keys alike,
    which changes no score.
    """

    def __call__(self, packing: Packing, tokens_M: Tensor) -> Tensor:
        """[M, D] of some of the packed tokens, with gradient to the weights if it is enabled."""
        decoder = self._model.model
        # The padding token's embedding has no gradient, as in the model.
        embedding = decoder.embed_tokens
        states_ND = functional.embedding(packing.token_ids_N, embedding.weight, embedding.padding_idx)
        angles_NP = packing.positions_N[:, None].to(states_ND.dtype) * decoder.rotary_emb.inv_freq
        turn_N1P = torch.polar(torch.ones_like(angles_NP), angles_NP)[:, None]
        for layer in decoder.layers:
            attended_ND = self._attended(layer.self_attn, layer.input_layernorm.weight, states_ND, turn_N1P, packing)
            states_ND = torch.addmm(states_ND, attended_ND, layer.self_attn.o_proj.weight.T)
            mlp = layer.mlp
            both = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * layer.post_attention_layernorm.weight
            gate_ND = gated(normed_linear(states_ND, both, self._epsilon))
            states_ND = torch.addmm(states_ND, gate_ND, mlp.down_proj.weight.T)
        states_MD = states_ND.index_select(0, tokens_M)
        return functional.rms_norm(states_MD, states_MD.shape[1:], decoder.norm.weight, self._epsilon)

    def _attended(self, module: Any, norm_D: Tensor, states_ND: Tensor, turn_N1P: Tensor, packing: Packing) -> Tensor:
        queries, keys = (self._paired(one.weight) for one in (module.q_proj, module.k_proj))
        weight_CD = torch.cat((queries, keys, module.v_proj.weight)) * norm_D
        heads_NAW = normed_linear(states_ND, weight_CD, self._epsilon).unflatten(1, (-1, self._width))
        query_W, key_W = (self._paired(one.weight[:, None])[:, 0] for one in (module.q_norm, module.k_norm))
        weight_MW = torch.cat((query_W.expand(self._heads, -1), key_W.expand(self._key_heads, -1)))
        heads_NAW = turned_heads(heads_NAW, weight_MW, turn_N1P, self._epsilon)
        # A normed head is at most sqrt(W) long before its weight.
        largest = (query_W.detach().abs().max() * key_W.detach().abs().max()).item() * self._width**0.5
        parts: Any = _ToRows.apply(heads_NAW, packing, self._heads, self._key_heads)
        found = [
            causal_attention(*parts[first : first + 3], largest_score=largest) for first in range(0, len(parts), 3)
        ]
        return _FromRows.apply(packing, *found)  # pyright: ignore[reportReturnType]

    def _paired(self, weight_CD: Tensor) -> Tensor:
        """The rows of each head in the order 0, W / 2, 1, W / 2 + 1, ..."""
        return weight_CD.unflatten(0, (-1, 2, self._width // 2)).transpose(1, 2).flatten(0, 2)


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
