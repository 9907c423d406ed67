"""Qwen3's decoder over a slot cache, without what transformers wraps around every module of it.

The same function of the same weights, rounded otherwise: queries and keys are normed and rotated together, and a
single token's attention is two matmuls a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rti_exp.compiled_qwen3.architecture import PlainQwen3, is_plain_qwen3
from rti_exp.engines.slots import SlotCache

_MERGED_HEADS = 2
"""Up to so many key heads of a row are one matmul: their blocks of zeros cost less than further calls."""


def straight_decoder(model: PreTrainedModel) -> StraightDecoder | None:
    """None for a model that is not just Qwen3's."""
    return StraightDecoder(model) if is_plain_qwen3(model) else None


class StraightDecoder(PlainQwen3):
    """Final hidden states of `model`; the caller sees to inference mode and to the head."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._own_K1K1 = torch.eye(self._key_heads, dtype=torch.float32)[:, None, :, None]

    @property
    def weight(self) -> Tensor:
        """The embedding's."""
        return self._model.model.embed_tokens.weight

    def __call__(self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, mask_B1TK: Tensor) -> Tensor:
        """[B, T, D] before the head."""
        decoder = self._model.model
        states_BTD = functional.embedding(tokens_BT, decoder.embed_tokens.weight)
        angles_BT1P = (positions_BT[..., None].float() * decoder.rotary_emb.inv_freq)[:, :, None]
        cosine, sine = angles_BT1P.cos().to(states_BTD.dtype), angles_BT1P.sin().to(states_BTD.dtype)
        turn = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
        for index, layer in enumerate(decoder.layers):
            normed_BTD = self._normed(states_BTD, layer.input_layernorm.weight)
            attended_BTD = self._attended(layer.self_attn, cache, index, normed_BTD, turn, mask_B1TK)
            states_BTD = states_BTD + functional.linear(attended_BTD, layer.self_attn.o_proj.weight)
            normed_BTD, mlp = self._normed(states_BTD, layer.post_attention_layernorm.weight), layer.mlp
            gate = functional.silu(functional.linear(normed_BTD, mlp.gate_proj.weight))
            gate = gate * functional.linear(normed_BTD, mlp.up_proj.weight)
            states_BTD = states_BTD + functional.linear(gate, mlp.down_proj.weight)
        return self._normed(states_BTD, decoder.norm.weight)

    def _normed(self, states: Tensor, weight: Tensor) -> Tensor:
        wide = states.float()
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self._epsilon).rsqrt_()
        return (wide * scale).to(states.dtype) * weight

    def _attended(
        self, module: Any, cache: SlotCache, index: int, normed_BTD: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """[B, T, H * W]."""
        queries, keys, values = (
            functional.linear(normed_BTD, one.weight) for one in (module.q_proj, module.k_proj, module.v_proj)
        )
        both_BTMW = torch.cat((queries, keys), dim=-1).unflatten(-1, (-1, self._width))
        query_W, key_W = module.q_norm.weight, module.k_norm.weight
        weight_MW = torch.cat((query_W.expand(self._heads, -1), key_W.expand(self._key_heads, -1)))
        both_BTMW, half = self._normed(both_BTMW, weight_MW), self._width // 2
        swapped_BTMW = torch.cat((both_BTMW[..., half:], both_BTMW[..., :half]), dim=-1)
        both_BMTW = (both_BTMW * turn[0] + swapped_BTMW * turn[1]).transpose(1, 2)
        queries_BHTW = both_BMTW[:, : self._heads]
        keys, values = cache.update(
            both_BMTW[:, self._heads :], values.unflatten(-1, (-1, self._width)).transpose(1, 2), index
        )
        if self._merges(queries_BHTW, keys, values):
            return _single_token_attention(queries_BHTW, keys, values, mask, self._own_K1K1, module.scaling)
        if queries_BHTW.device.type == "cpu":  # without a copy of keys and values for each query head
            attended_BHTW = functional.scaled_dot_product_attention(
                queries_BHTW, keys, values, attn_mask=mask, scale=module.scaling, enable_gqa=True
            )
            return attended_BHTW.transpose(1, 2).flatten(2)
        attended_BTHW, _ = sdpa_attention_forward(
            module, queries_BHTW, keys, values, mask, dropout=0.0, scaling=module.scaling
        )
        return attended_BTHW.flatten(2)

    def _merges(self, queries_BHTW: Tensor, keys: Tensor, values: Tensor) -> bool:
        on_cpu = queries_BHTW.device.type == "cpu" and queries_BHTW.shape[2] == 1
        in_float = keys.dtype == values.dtype == queries_BHTW.dtype == torch.float32
        return on_cpu and in_float and self._key_heads <= _MERGED_HEADS


def _single_token_attention(
    queries_BH1W: Tensor, keys: Tensor, values: Tensor, mask_B11K: Tensor, own_K1K1: Tensor, scaling: float
) -> Tensor:
    """[B, 1, H * W]: each row's queries beside zeros in place of the other key heads, so that a row is one matmul.

    torch's kernel copies keys and values for each query head, and one matmul a key head is a call with two rows.
    """
    rows, heads, _, width = queries_BH1W.shape
    key_heads = keys.shape[1]
    grouped = queries_BH1W.view(rows, key_heads, -1, 1, width)
    queries_BHC = (grouped * own_K1K1).view(rows, heads, key_heads * width)
    # [B, heads, K, W] as they are stored, [B, K, heads * W]: no copy.
    keys_BKC, values_BKC = (part.transpose(1, 2).flatten(2) for part in (keys, values))
    mask_BHK = mask_B11K[:, 0].expand(-1, heads, -1)
    scores_BHK = torch.baddbmm(mask_BHK, queries_BHC, keys_BKC.transpose(1, 2), alpha=scaling)
    found = torch.bmm(scores_BHK.softmax(dim=-1), values_BKC).view(rows, key_heads, -1, key_heads, width)
    return found.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(rows, 1, heads * width)
