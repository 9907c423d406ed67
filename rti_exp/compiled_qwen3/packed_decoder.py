"""Qwen3's decoder for training: over packed tokens, with the parts of `fused` in place of transformers' modules.

The same function of the same weights as the model's own forward pass, rounded otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rti_exp.compiled_qwen3.architecture import PlainQwen3
from rti_exp.compiled_qwen3.fused import gated, linear, normed_linear, turned_heads
from rti_exp.compiled_qwen3.matmul import rows_for
from rti_exp.compiled_qwen3.packed_attention import attention_in_rows, packed_attention, takes
from rti_exp.compiled_qwen3.packing import Packing


def padded(numbers_N: Tensor) -> Tensor:
    """With zeros behind: up to a multiple of 64, of 128 from 1,024 on, of 256 from 2,048 on and so forth."""
    return functional.pad(numbers_N, (0, rows_for(len(numbers_N), least=64, parts=8) - len(numbers_N)))


class PackedDecoder(PlainQwen3):
    """Final hidden states of a plain Qwen3 (`rti_exp.compiled_qwen3.architecture.is_plain_qwen3`), after its last norm.

    A norm's weight is multiplied into the linear layer behind it, whose matrices are put together where they have the
    same input.
    """

    def __call__(self, packing: Packing, tokens_M: Tensor) -> Tensor:
        """[M, D] of some of the packed tokens, with gradient to the weights if it is enabled."""
        decoder = self._model.model
        # The padding token's embedding has no gradient, as in the model.
        embedding = decoder.embed_tokens
        token_ids_N, positions_N = padded(packing.token_ids_N), padded(packing.positions_N)
        states_ND = functional.embedding(token_ids_N, embedding.weight, embedding.padding_idx)
        angles_NP = positions_N[:, None].to(states_ND.dtype) * decoder.rotary_emb.inv_freq
        turn = (angles_NP.cos(), angles_NP.sin())
        for layer in decoder.layers:
            attended_ND = self._attended(layer.self_attn, layer.input_layernorm.weight, states_ND, turn, packing)
            states_ND = linear(attended_ND, layer.self_attn.o_proj.weight, states_ND)
            mlp = layer.mlp
            both = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * layer.post_attention_layernorm.weight
            gate_ND = gated(normed_linear(states_ND, both, self._epsilon))
            states_ND = linear(gate_ND, mlp.down_proj.weight, states_ND)
        states_MD = states_ND.index_select(0, tokens_M)
        return functional.rms_norm(states_MD, states_MD.shape[1:], decoder.norm.weight, self._epsilon)

    def _attended(
        self, module: Any, norm_D: Tensor, states_ND: Tensor, turn: tuple[Tensor, Tensor], packing: Packing
    ) -> Tensor:
        weight_CD = torch.cat((module.q_proj.weight, module.k_proj.weight, module.v_proj.weight)) * norm_D
        heads_NAW = normed_linear(states_ND, weight_CD, self._epsilon).unflatten(1, (-1, self._width))
        query_W, key_W = module.q_norm.weight, module.k_norm.weight
        weight_MW = torch.cat((query_W.expand(self._heads, -1), key_W.expand(self._key_heads, -1)))
        heads_NAW = turned_heads(heads_NAW, weight_MW, *turn, self._epsilon)
        if takes(heads_NAW):
            return packed_attention(heads_NAW, packing, self._heads, self._key_heads)
        # A normed head is at most sqrt(W) long before its weight.
        largest = (query_W.detach().abs().max() * key_W.detach().abs().max()).item() * self._width**0.5
        count = len(packing.token_ids_N)
        found_ND = attention_in_rows(heads_NAW[:count], packing, self._heads, self._key_heads, largest_score=largest)
        return functional.pad(found_ND, (0, 0, 0, len(heads_NAW) - count))
