"""Qwen3's forward pass for rollouts: over tokens that each know their slot and position.

It computes the model's own function with other rounding. Between matmuls there is one kernel call, and a token reads
the keys and values of its own context only: rows of different lengths cost neither masks nor padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from rti_exp.compiled_qwen3 import decode_kernels, matmul
from rti_exp.compiled_qwen3.architecture import PlainQwen3
from rti_exp.compiled_qwen3.decode_kernels import Outputs, Rows, Sampling
from rti_exp.compiled_qwen3.matmul import times_transposed
from rti_exp.compiled_qwen3.slot_cache import KernelSlotCache

_MANY_ROWS = 64
"""From this many rows on, matmuls are oneDNN's: a call takes longer there, its arithmetic half the time."""
_KEPT_ROWS = 512
"""The memory of passes over up to this many tokens is kept: decode steps are many and short."""
_LOGIT_ROWS = 1024
"""The most rows of logits at once."""
Array = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer's weights as views: matrices transposed, norms as arrays."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    first_norm: Array
    second_norm: Array
    head_norms: tuple[Array, Array]


class _Scratch:
    """What a pass over `rows` tokens, padding included, writes around its matmuls; one set serves all layers."""

    def __init__(self, rows: int, memory: tuple[Tensor, ...], width: int) -> None:
        parts = [part[:rows] for part in memory]
        self.normed, self.query, self.key, self.value, self.attended, self.gate, self.up, self.gated = parts
        arrays = [part.numpy() for part in parts]
        self.normed_array, self.gate_array, self.up_array, self.gated_array = (arrays[n] for n in (0, 5, 6, 7))
        self.heads = tuple(_heads_of(part, width) for part in parts[1:4])
        self.attended_heads = _heads_of(self.attended, width)


class RolloutDecoder(PlainQwen3):
    """Runs the model over a `KernelSlotCache`, in inference mode.

    It reads the model's weights through views: call `refresh` when parameters may have been replaced by other tensors.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._layers: list[_Layer] = []
        self._kept = self._memory(0)
        self._scratches: dict[int, _Scratch] = {}
        self._scores, self._powers = np.empty(0, np.float32), np.empty(0, np.int32)
        self._angles = np.empty((0, self._width // 2), np.float32), np.empty((0, self._width // 2), np.float32)
        self._frequencies_P = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        frequencies_P = self._model.model.rotary_emb.inv_freq
        if not torch.equal(frequencies_P, self._frequencies_P):  # a model that was in bf16 meanwhile has rounded ones
            self._frequencies_P, self._scores = frequencies_P.clone(), np.empty(0, np.float32)
        self._layers = [
            _Layer(
                query=_transposed(layer.self_attn.q_proj),
                key=_transposed(layer.self_attn.k_proj),
                value=_transposed(layer.self_attn.v_proj),
                out=_transposed(layer.self_attn.o_proj),
                gate=_transposed(layer.mlp.gate_proj),
                up=_transposed(layer.mlp.up_proj),
                down=_transposed(layer.mlp.down_proj),
                first_norm=_array(layer.input_layernorm),
                second_norm=_array(layer.post_attention_layernorm),
                head_norms=(_array(layer.self_attn.q_norm), _array(layer.self_attn.k_norm)),
            )
            for layer in self._model.model.layers
        ]

    def new_cache(self) -> KernelSlotCache:
        layers = self._model.config.num_hidden_layers
        return KernelSlotCache(layers=layers, key_heads=self._key_heads, width=self._width)

    def next_logits(self, cache: KernelSlotCache, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor) -> Tensor:
        """[B, V] after these tokens, each in another slot."""
        return self._logits(self.states(cache, tokens_B, slots_B, positions_B, torch.arange(len(tokens_B))))

    def decode(
        self,
        cache: KernelSlotCache,
        slots_M: Array,
        tokens_M: Array,
        positions_M: Array,
        *,
        temperatures_M: Array,
        uniforms_TM: Array,
        limits_M: Array,
        stops_MV: Array,
    ) -> tuple[Array, Array, Array]:
        """Decodes M rows until each is stopped or full; a row leaves the batch as soon as it is done.

        Args:
            slots_M: one for each row, with the positions before its last prompt token stored.
            tokens_M, positions_M: the last token of each prompt.
            temperatures_M: float32; 0 takes the likeliest token.
            uniforms_TM: float32 in [0, 1), what each step samples by; one step is enough if all rows are greedy.
            limits_M: the most tokens.
            stops_MV: whether a token ends the row.

        Returns:
            Ids and log-probs [T, M], of the distribution that sampled, and the number of tokens [M].
        """
        ids_TM = np.zeros((limits_M.max(), len(slots_M)), np.int64)
        log_probs_TM, counts_M = np.zeros(ids_TM.shape, np.float32), np.zeros(len(slots_M), np.int64)
        scratch = np.empty(stops_MV.shape[1], np.float32), np.empty(stops_MV.shape[1], np.int32)
        rows = Rows(np.arange(len(slots_M)), tokens_M.copy(), positions_M.copy(), np.ones(len(slots_M), dtype=bool))
        slots_B = slots_M
        for step in range(len(ids_TM)):
            arrays = (torch.from_numpy(array) for array in (rows.tokens_B, slots_B, rows.positions_B))
            logits_BV = self.next_logits(cache, *arrays)
            sampling = Sampling(uniforms_TM[min(step, len(uniforms_TM) - 1)], temperatures_M, limits_M, stops_MV)
            outputs = Outputs(ids_TM[step], log_probs_TM[step], counts_M)
            left = decode_kernels.advance(logits_BV.numpy(), step, rows, sampling, outputs, scratch)
            if not left:
                break
            if left < len(slots_B):
                running_B = rows.running_B
                slots_B, rows = slots_B[running_B], Rows(*(array[running_B] for array in rows))
        return ids_TM, log_probs_TM, counts_M

    def log_probs(
        self,
        cache: KernelSlotCache,
        tokens_N: Array,
        slots_N: Array,
        positions_N: Array,
        *,
        rows_M: Array,
        targets: Sequence[int],
        temperatures: Sequence[float],
        max_tokens: int,
    ) -> list[float]:
        """Stores the tokens' keys and values, and gives the log-prob of each target.

        Args:
            cache: with every position before the tokens of a slot stored.
            tokens_N, slots_N, positions_N: tokens of one slot are consecutive and in order.
            rows_M: the token after which each target stands, ascending.
            targets: token ids.
            temperatures: one for each target.
            max_tokens: of one pass.
        """
        values: list[float] = []
        for start in range(0, len(tokens_N), max_tokens):
            part = slice(start, start + max_tokens)
            rows_here = torch.from_numpy(rows_M[(rows_M >= start) & (rows_M < part.stop)] - start)
            tokens, slots, positions = (torch.from_numpy(array[part]) for array in (tokens_N, slots_N, positions_N))
            for states_CD in self.states(cache, tokens, slots, positions, rows_here).split(_LOGIT_ROWS):
                here = slice(len(values), len(values) + len(states_CD))
                targets_C1 = torch.tensor(targets[here])[:, None]
                logits_CV = self._logits(states_CD)
                if any(temperature != 1 for temperature in temperatures[here]):
                    logits_CV = logits_CV / torch.tensor(temperatures[here])[:, None]
                values += logits_CV.log_softmax(dim=1).gather(1, targets_C1.long())[:, 0].tolist()
        return values

    def states(
        self, cache: KernelSlotCache, tokens_N: Tensor, slots_N: Tensor, positions_N: Tensor, rows_M: Tensor
    ) -> Tensor:
        """[M, D] of the tokens `rows_M`, after the last norm; the keys and values of all N tokens are stored.

        Raises:
            IndexError: a token lies outside the cache, which kernels do not check.
        """
        slots, positions, rows = slots_N.numpy(), positions_N.numpy(), np.arange(len(tokens_N))
        if len(rows) and (slots.max() >= cache.slot_count or positions.max() >= cache.length):
            raise IndexError("tokens outside the cache")
        self._prepare(cache.length)
        decoder, epsilon, places = self._model.model, self._epsilon, (slots, positions)
        states_ND = functional.embedding(_padded(tokens_N), decoder.embed_tokens.weight)
        scratch = self._scratch(len(states_ND))
        for index, layer in enumerate(self._layers):
            decode_kernels.norm(states_ND.numpy(), layer.first_norm, epsilon, scratch.normed_array)
            queries, keys, values = self._projected(layer, scratch)
            stored = cache.keys[index].numpy(), cache.values[index].numpy()
            decode_kernels.store(queries, keys, values, layer.head_norms, self._angles, epsilon, places, stored)
            if index == len(self._layers) - 1 and len(rows_M) < len(rows):  # the other tokens are done
                rows, states_ND = rows_M.numpy(), states_ND.index_select(0, _padded(rows_M))
                scratch = self._scratch(len(states_ND))
            buffers = self._scores, self._powers
            decode_kernels.attend(queries, rows, self._width**-0.5, places, stored, buffers, scratch.attended_heads)
            _add_product(states_ND, scratch.attended, layer.out)
            decode_kernels.norm(states_ND.numpy(), layer.second_norm, epsilon, scratch.normed_array)
            decode_kernels.gate(*self._gates(layer, scratch), scratch.gated_array, self._powers)
            _add_product(states_ND, scratch.gated, layer.down)
        normed_ND = torch.empty_like(states_ND)
        decode_kernels.norm(states_ND.numpy(), _array(decoder.norm), epsilon, normed_ND.numpy())
        return normed_ND[: len(rows)]

    def _logits(self, states_ND: Tensor) -> Tensor:
        weight_VD = self._model.lm_head.weight.detach()
        if len(states_ND) < _MANY_ROWS:
            return states_ND @ weight_VD.T
        return times_transposed(_padded(states_ND), weight_VD)[: len(states_ND)]

    def _projected(self, layer: _Layer, scratch: _Scratch) -> tuple[Array, ...]:
        """Queries, keys and values, [rows, heads, W] each."""
        if len(scratch.normed) >= _MANY_ROWS:
            weights = layer.query, layer.key, layer.value
            return tuple(_heads_of(times_transposed(scratch.normed, weight.T), self._width) for weight in weights)
        torch.mm(scratch.normed, layer.query, out=scratch.query)
        torch.mm(scratch.normed, layer.key, out=scratch.key)
        torch.mm(scratch.normed, layer.value, out=scratch.value)
        return scratch.heads

    def _gates(self, layer: _Layer, scratch: _Scratch) -> tuple[Array, ...]:
        if len(scratch.normed) >= _MANY_ROWS:
            return tuple(times_transposed(scratch.normed, weight.T).numpy() for weight in (layer.gate, layer.up))
        torch.mm(scratch.normed, layer.gate, out=scratch.gate)
        torch.mm(scratch.normed, layer.up, out=scratch.up)
        return scratch.gate_array, scratch.up_array

    def _prepare(self, length: int) -> None:
        """Angles and scratch for this many positions."""
        if length <= len(self._scores):
            return
        angles_LP = torch.arange(length)[:, None].float() * self._frequencies_P
        self._angles = angles_LP.cos().numpy(), angles_LP.sin().numpy()
        self._powers = np.empty(max(length, self._model.config.intermediate_size), np.int32)
        self._scores = np.empty(length, np.float32)  # last: its length says that the others are there

    def _scratch(self, rows: int) -> _Scratch:
        if rows in self._scratches:
            return self._scratches[rows]
        if rows > _KEPT_ROWS:
            return _Scratch(rows, self._memory(rows), self._width)
        if rows > len(self._kept[0]):
            self._kept = self._memory(min(2 * rows, _KEPT_ROWS))
            self._scratches.clear()
        scratch = self._scratches[rows] = _Scratch(rows, self._kept, self._width)
        return scratch

    def _memory(self, rows: int) -> tuple[Tensor, ...]:
        config, queries, keys = self._model.config, self._heads * self._width, self._key_heads * self._width
        inner = config.intermediate_size
        sizes = config.hidden_size, queries, keys, keys, queries, inner, inner, inner
        # Zeros: padding is computed like the rest, and subnormal numbers would slow that down.
        return tuple(torch.zeros(rows, size, dtype=torch.float32, device="cpu") for size in sizes)


def _padded(values_N: Tensor) -> Tensor:
    """With zeros behind where oneDNN computes."""
    return values_N if len(values_N) < _MANY_ROWS else matmul.padded(values_N, least=32, parts=4)


def _add_product(sums_NC: Tensor, states_NK: Tensor, weight_KC: Tensor) -> None:
    if len(states_NK) < _MANY_ROWS:
        sums_NC.addmm_(states_NK, weight_KC)
    else:
        sums_NC.add_(times_transposed(states_NK, weight_KC.T))


def _heads_of(states_NC: Tensor, width: int) -> Array:
    """[N, heads, W]."""
    return states_NC.view(len(states_NC), states_NC.shape[1] // width, width).numpy()


def _transposed(module: Any) -> Tensor:
    return module.weight.detach().T


def _array(norm: Any) -> Array:
    return norm.weight.detach().numpy()
