"""Qwen3's decoder over a slot cache, without what transformers wraps around every module of it.

The same operations on the same values in the same order, so the same bits; of a small model's decode step the
wrapping (kwargs, hooks, mask building, module calls) takes up to half. Normalising and rotating queries and keys
together is the one thing done otherwise: both are per head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rti_exp.engines.slots import SlotCache
from rti_exp.models.qwen import is_plain_qwen3


def straight_decoder(model: PreTrainedModel) -> StraightDecoder | None:
    """None for a model that is not just Qwen3's."""
    return StraightDecoder(model) if is_plain_qwen3(model) else None


class StraightDecoder:
    """Final hidden states of `model`; the caller sees to inference mode and to the head."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        config: Any = model.config
        self._heads: int = config.num_attention_heads
        self._key_heads: int = config.num_key_value_heads or config.num_attention_heads
        self._width: int = config.head_dim
        self._epsilon: float = config.rms_norm_eps

    @property
    def weight(self) -> Tensor:
        """The embedding's."""
        return self._model.model.embed_tokens.weight

    def __call__(self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, mask_B1TK: Tensor) -> Tensor:
        """[B, T, D] before the head."""
        decoder = self._model.model
        hidden_BTD = functional.embedding(tokens_BT, decoder.embed_tokens.weight)
        angles_BT1W = (positions_BT[..., None].float() * decoder.rotary_emb.inv_freq)[:, :, None]
        angles_BT1W = torch.cat((angles_BT1W, angles_BT1W), dim=-1)
        turn = angles_BT1W.cos().to(hidden_BTD.dtype), angles_BT1W.sin().to(hidden_BTD.dtype)
        for index, layer in enumerate(decoder.layers):
            normed_BTD = self._norm(hidden_BTD, layer.input_layernorm.weight)
            hidden_BTD = hidden_BTD + self._attention(layer.self_attn, cache, index, normed_BTD, turn, mask_B1TK)
            normed_BTD, mlp = self._norm(hidden_BTD, layer.post_attention_layernorm.weight), layer.mlp
            gate = functional.silu(functional.linear(normed_BTD, mlp.gate_proj.weight))
            gate = gate * functional.linear(normed_BTD, mlp.up_proj.weight)
            hidden_BTD = hidden_BTD + functional.linear(gate, mlp.down_proj.weight)
        return self._norm(hidden_BTD, decoder.norm.weight)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        wide = states.float()
        variance = wide.pow(2).mean(-1, keepdim=True)
        return weight * (wide * torch.rsqrt(variance + self._epsilon)).to(states.dtype)

    def _attention(
        self, module: Any, cache: SlotCache, index: int, normed_BTD: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        rows, length, _ = normed_BTD.shape
        queries = functional.linear(normed_BTD, module.q_proj.weight)
        keys = functional.linear(normed_BTD, module.k_proj.weight)
        both_BTHW = torch.cat((queries, keys), dim=-1).view(rows, length, -1, self._width)
        values = functional.linear(normed_BTD, module.v_proj.weight).view(rows, length, -1, self._width)
        weight_HW = torch.cat(
            (
                module.q_norm.weight.expand(self._heads, -1),
                module.k_norm.weight.expand(self._key_heads, -1),
            )
        )
        both_BTHW = self._norm(both_BTHW, weight_HW)
        half = self._width // 2
        swapped_BTHW = torch.cat((-both_BTHW[..., half:], both_BTHW[..., :half]), dim=-1)
        both_BHTW = (both_BTHW * turn[0] + swapped_BTHW * turn[1]).transpose(1, 2)
        seen = cache.update(both_BHTW[:, self._heads :], values.transpose(1, 2), index)
        attended, _ = sdpa_attention_forward(
            module, both_BHTW[:, : self._heads], *seen, mask, dropout=0.0, scaling=module.scaling
        )
        return functional.linear(attended.reshape(rows, length, -1), module.o_proj.weight)
