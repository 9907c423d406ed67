"""The update's forward pass: Qwen3 over packed tokens, made of compiled autograd steps.

It computes the model's own function with other rounding. A micro-batch has no padding, and tokens that rows share are
computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rti_exp.compiled_qwen3 import matmul
from rti_exp.compiled_qwen3.architecture import PlainQwen3
from rti_exp.compiled_qwen3.autograd_steps import (
    chosen_log_probs,
    gated,
    linear,
    normed_linear,
    packed_attention,
    rotated_heads,
)
from rti_exp.compiled_qwen3.packing import Packing, pack


def padded(values_N: Tensor) -> Tensor:
    """With zeros behind: up to a multiple of 64, of 128 from 1,024 on, of 256 from 2,048 on and so on."""
    return matmul.padded(values_N, least=64, parts=8)


class PackedDecoder(PlainQwen3):
    """Log-probs of a plain Qwen3.

    A norm's weight is multiplied into the linear layers behind it, and linear layers with the same input are joined:
    a second copy of most weights for the time of a micro-batch.
    """

    def log_probs(
        self,
        rows: Sequence[Sequence[int]],
        rows_M: Tensor,
        columns_M: Tensor,
        targets_M: Tensor,
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of tokens, with gradient to the weights if enabled, and entropies, without; [M] each, in nats.

        Args:
            rows: token ids of each row.
            rows_M, columns_M: the place in `rows` after which each target stands.
            targets_M: token ids.
            temperature: the logits are divided by it.
        """
        packing = pack(rows)
        states_MD = self.states(packing, padded(packing.tokens_BT[rows_M, columns_M]))
        logits_MV = linear(states_MD, self._model.lm_head.weight)
        if temperature != 1:
            logits_MV = logits_MV / temperature
        log_probs_M, entropies_M = chosen_log_probs(logits_MV, padded(targets_M))
        return log_probs_M[: len(targets_M)], entropies_M[: len(targets_M)]

    def states(self, packing: Packing, tokens_M: Tensor) -> Tensor:
        """[M, D] of some of the packed tokens, after the last norm."""
        decoder = self._model.model
        embedding = decoder.embed_tokens  # the padding token's embedding has no gradient, as in the model
        token_ids_N, positions_N = padded(packing.token_ids_N), padded(packing.positions_N)
        states_ND = functional.embedding(token_ids_N, embedding.weight, embedding.padding_idx)
        angles_NP = positions_N[:, None].to(states_ND.dtype) * decoder.rotary_emb.inv_freq
        rotation = angles_NP.cos(), angles_NP.sin()
        for layer in decoder.layers:
            attended_ND = self._attended(layer.self_attn, layer.input_layernorm.weight, states_ND, rotation, packing)
            states_ND = linear(attended_ND, layer.self_attn.o_proj.weight, states_ND)
            mlp = layer.mlp
            joined_FD = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)) * layer.post_attention_layernorm.weight
            gated_NG = gated(normed_linear(states_ND, joined_FD, self._epsilon))
            states_ND = linear(gated_NG, mlp.down_proj.weight, states_ND)
        states_MD = states_ND.index_select(0, tokens_M)
        return functional.rms_norm(states_MD, states_MD.shape[1:], decoder.norm.weight, self._epsilon)

    def _attended(
        self, module: Any, norm_D: Tensor, states_ND: Tensor, rotation: tuple[Tensor, Tensor], packing: Packing
    ) -> Tensor:
        weight_CD = torch.cat((module.q_proj.weight, module.k_proj.weight, module.v_proj.weight)) * norm_D
        heads_NAW = normed_linear(states_ND, weight_CD, self._epsilon).unflatten(1, (-1, self._width))
        query_W, key_W = module.q_norm.weight, module.k_norm.weight
        weight_MW = torch.cat((query_W.expand(self._heads, -1), key_W.expand(self._key_heads, -1)))
        heads_NAW = rotated_heads(heads_NAW, weight_MW, *rotation, self._epsilon)
        return packed_attention(heads_NAW, packing, self._heads, self._key_heads)
