"""Qwen3's decoder on one core in float32, over tokens that each know their slot and position.

The same function of the same weights as the model's own forward pass, rounded otherwise. Between matmuls there is one
compiled step (`decode_kernels`), and a token reads the keys and values of its own context only: rows of different
lengths cost neither masks nor padding.
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

from rti_exp.compiled_qwen3.architecture import PlainQwen3
from rti_exp.compiled_qwen3.cache import FlatCache
from rti_exp.compiled_qwen3.matmul import rows_for, times_transposed
from rti_exp.engines.spans import LOGIT_ROWS, Span, by_span, chosen_log_probs

_ROUNDING = 1e-4
"""By how much, in parts of the largest, hidden states may differ from the model's."""
_MANY_ROWS = 64
"""From so many on matmuls are oneDNN's, whose calls take longer and whose arithmetic takes half of the time."""
_KEPT_ROWS = 512
"""Memory of passes over up to so many tokens is kept for the next: decode steps are many and short."""


def in_flat_arithmetic(model: PreTrainedModel) -> bool:
    """Whether the compiled steps are for what is computed now: float32 on one thread of the CPU."""
    if torch.is_autocast_enabled("cpu") or torch.get_num_threads() != 1:
        return False
    return all(weight.dtype == torch.float32 and weight.device.type == "cpu" for weight in model.parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A layer's weights as they are used: matrices transposed, norms as arrays."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    first_norm: np.ndarray
    second_norm: np.ndarray
    query_norm: np.ndarray
    key_norm: np.ndarray


class _Scratch:
    """What a pass over so many tokens writes around its matmuls; one set serves all layers.

    Args:
        rows: of the tokens, and of padding behind them.
        memory: at least as many rows of its parts.
        width: of a head.
    """

    def __init__(self, rows: int, memory: tuple[Tensor, ...], width: int) -> None:
        parts = [part[:rows] for part in memory]
        self.normed, self.query, self.key, self.value, self.found, self.gate, self.up, self.gated = parts
        arrays = [part.numpy() for part in parts]
        self.normed_array, self.gate_array, self.up_array, self.gated_array = (arrays[n] for n in (0, 5, 6, 7))
        self.heads = tuple(_heads_of(part, width) for part in parts[1:4])
        self.found_heads = _heads_of(self.found, width)


class FlatForward(PlainQwen3):
    """Runs `model` over a `FlatCache`, in inference mode and `in_flat_arithmetic`.

    It looks the weights up when it is made and at `renew`: call that after each change of them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        from rti_exp.compiled_qwen3 import decode_kernels as kernels  # needs the compiler

        super().__init__(model)
        self._kernels = kernels
        self._layers: list[_Layer] = []
        self._kept = self._memory(0)
        self._scratches: dict[int, _Scratch] = {}
        self._scores, self._powers = np.empty(0, np.float32), np.empty(0, np.int32)
        self._cosine_LP = self._sine_LP = np.empty((0, self._width // 2), np.float32)
        self.renew()

    def renew(self) -> None:
        """Look the model's weights up: they may be other tensors than they were."""
        self._layers = [
            _Layer(
                query=_turned(layer.self_attn.q_proj),
                key=_turned(layer.self_attn.k_proj),
                value=_turned(layer.self_attn.v_proj),
                out=_turned(layer.self_attn.o_proj),
                gate=_turned(layer.mlp.gate_proj),
                up=_turned(layer.mlp.up_proj),
                down=_turned(layer.mlp.down_proj),
                first_norm=_array(layer.input_layernorm),
                second_norm=_array(layer.post_attention_layernorm),
                query_norm=_array(layer.self_attn.q_norm),
                key_norm=_array(layer.self_attn.k_norm),
            )
            for layer in self._model.model.layers
        ]

    def forget(self) -> None:
        """Hold nothing of the model until `renew`."""
        self._layers, self._scores = [], np.empty(0, np.float32)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def vocabulary(self) -> int:
        return len(self._model.lm_head.weight)

    def new_cache(self) -> FlatCache:
        layers = self._model.config.num_hidden_layers
        return FlatCache(layers=layers, key_heads=self._key_heads, width=self._width)

    def next_logits(
        self, cache: FlatCache, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int
    ) -> Tensor:
        """[B, V] after these tokens, each in a slot of its own."""
        return self._logits(self._hidden(cache, tokens_B, slots_B, positions_B, torch.arange(len(tokens_B))))

    def feed(self, cache: FlatCache, spans: Sequence[Span], *, max_tokens: int) -> list[tuple[float, ...]]:
        """Feed all spans, in passes of at most `max_tokens` tokens; the wanted log-probs, in their order."""
        lengths = np.array([span.end - span.start for span in spans])
        tokens = np.array([one for span in spans for one in span.ids[span.start : span.end]], np.int64)
        slots = np.repeat([span.row.slot for span in spans], lengths)
        offsets = np.cumsum(lengths) - lengths
        positions = np.arange(len(tokens)) - np.repeat(offsets - [span.start for span in spans], lengths)
        firsts = [offset + span.first - span.start for offset, span in zip(offsets, spans, strict=True)]
        wanted = np.array(
            [first + i for first, span in zip(firsts, spans, strict=True) for i in range(len(span.targets))], np.int64
        )
        targets = [target for span in spans for target in span.targets]
        values: list[float] = []
        for start in range(0, len(tokens), max_tokens):
            part = slice(start, start + max_tokens)
            rows_M = torch.from_numpy(wanted[(wanted >= start) & (wanted < part.stop)] - start)
            tokens_N, slots_N, positions_N = (torch.from_numpy(one[part]) for one in (tokens, slots, positions))
            hidden_MD = self._hidden(cache, tokens_N, slots_N, positions_N, rows_M)
            for chunk_MD in hidden_MD.split(LOGIT_ROWS):
                chosen = targets[len(values) : len(values) + len(chunk_MD)]
                values += chosen_log_probs(self._logits(chunk_MD), chosen)
        return by_span(spans, values)

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        count, weight_VD = len(hidden_ND), self._model.lm_head.weight.detach()
        if count < _MANY_ROWS:
            return hidden_ND @ weight_VD.T
        rows = rows_for(count, least=32, parts=4)
        return times_transposed(functional.pad(hidden_ND, (0, 0, 0, rows - count)), weight_VD)[:count]

    def agrees(self) -> bool:
        """Whether the model's own forward pass gives the same: two rows of five tokens, then a sixth."""
        tokens_BT = torch.arange(2)[:, None] * 11 + torch.arange(6) * 7
        tokens_BT %= self._model.config.vocab_size
        own_BTD = self._model.model(input_ids=tokens_BT, use_cache=False).last_hidden_state
        cache = self.new_cache()
        cache.make_room(2, 6, most_slots=2)
        for start, end in ((0, 5), (5, 6)):
            slots_N = torch.arange(2).repeat_interleave(end - start)
            positions_N = torch.arange(start, end).repeat(2)
            tokens_N = tokens_BT[:, start:end].flatten()
            found_ND = self._hidden(cache, tokens_N, slots_N, positions_N, torch.arange(len(tokens_N)))
            expected_ND = own_BTD[:, start:end].flatten(0, 1)
            if not (found_ND - expected_ND).abs().max() <= _ROUNDING * expected_ND.abs().max():
                return False
        return True

    def _hidden(
        self, cache: FlatCache, tokens_N: Tensor, slots_N: Tensor, positions_N: Tensor, rows_M: Tensor
    ) -> Tensor:
        """[M, D] of the tokens `rows_M`, after the last norm; of all N keys and values are stored.

        In each slot all positions before the first of these are stored; of one slot, tokens are in order.
        """
        slots, positions, rows = slots_N.numpy(), positions_N.numpy(), np.arange(len(tokens_N))
        if len(rows) and (slots.max() >= cache.slot_count or positions.max() >= cache.length):
            raise IndexError("tokens beyond the cache")  # compiled steps do not look
        self._prepare(cache.length)
        decoder, kernels, epsilon = self._model.model, self._kernels, self._epsilon
        states_ND = functional.embedding(_padded(tokens_N), decoder.embed_tokens.weight)
        scratch = self._scratch(len(states_ND))
        for index, layer in enumerate(self._layers):
            kernels.norm(states_ND.numpy(), layer.first_norm, epsilon, scratch.normed_array)
            queries, keys, values = self._projected(layer, scratch)
            where = slots, positions, cache.keys[index].numpy(), cache.values[index].numpy()
            norms, angles = (layer.query_norm, layer.key_norm), (self._cosine_LP, self._sine_LP)
            kernels.store(queries, keys, values, *norms, *angles, epsilon, *where)
            if index == len(self._layers) - 1 and len(rows_M) < len(rows):  # the others' work is done
                rows, states_ND = rows_M.numpy(), states_ND.index_select(0, _padded(rows_M))
                scratch = self._scratch(len(states_ND))
            kernels.attend(queries, rows, self._width**-0.5, *where, self._scores, self._powers, scratch.found_heads)
            _add_product(states_ND, scratch.found, layer.out)
            kernels.norm(states_ND.numpy(), layer.second_norm, epsilon, scratch.normed_array)
            kernels.gate(*self._gates(layer, scratch), scratch.gated_array, self._powers)
            _add_product(states_ND, scratch.gated, layer.down)
        made_ND = torch.empty_like(states_ND)
        kernels.norm(states_ND.numpy(), _array(decoder.norm), epsilon, made_ND.numpy())
        return made_ND[: len(rows)]

    def _projected(self, layer: _Layer, scratch: _Scratch) -> tuple[np.ndarray, ...]:
        """Queries, keys and values, [rows, heads, W] each."""
        if len(scratch.normed) >= _MANY_ROWS:
            weights = layer.query, layer.key, layer.value
            return tuple(_heads_of(times_transposed(scratch.normed, one.T), self._width) for one in weights)
        torch.mm(scratch.normed, layer.query, out=scratch.query)
        torch.mm(scratch.normed, layer.key, out=scratch.key)
        torch.mm(scratch.normed, layer.value, out=scratch.value)
        return scratch.heads

    def _gates(self, layer: _Layer, scratch: _Scratch) -> tuple[np.ndarray, ...]:
        if len(scratch.normed) >= _MANY_ROWS:
            return tuple(times_transposed(scratch.normed, one.T).numpy() for one in (layer.gate, layer.up))
        torch.mm(scratch.normed, layer.gate, out=scratch.gate)
        torch.mm(scratch.normed, layer.up, out=scratch.up)
        return scratch.gate_array, scratch.up_array

    def _prepare(self, length: int) -> None:
        """Angles and scratch for so many positions."""
        if length <= len(self._scores):
            return
        angles_LP = torch.arange(length)[:, None].float() * self._model.model.rotary_emb.inv_freq
        self._cosine_LP, self._sine_LP = angles_LP.cos().numpy(), angles_LP.sin().numpy()
        self._powers = np.empty(max(length, self._model.config.intermediate_size), np.int32)
        self._scores = np.empty(length, np.float32)  # last: its length says that all are there

    def _scratch(self, rows: int) -> _Scratch:
        if rows in self._scratches:
            return self._scratches[rows]
        if rows > _KEPT_ROWS:
            return _Scratch(rows, self._memory(rows), self._width)
        if rows > len(self._kept[0]):
            self._kept = self._memory(min(2 * rows, _KEPT_ROWS))
            self._scratches.clear()
        made = self._scratches[rows] = _Scratch(rows, self._kept, self._width)
        return made

    def _memory(self, rows: int) -> tuple[Tensor, ...]:
        config, queries, keys = self._model.config, self._heads * self._width, self._key_heads * self._width
        inner = config.intermediate_size
        sizes = config.hidden_size, queries, keys, keys, queries, inner, inner, inner
        # Zeros: padding is computed like the rest, and numbers out of range would make that slow.
        return tuple(torch.zeros(rows, size, dtype=torch.float32, device="cpu") for size in sizes)


def _padded(numbers_N: Tensor) -> Tensor:
    """With zeros behind, where matmuls are oneDNN's."""
    count = len(numbers_N)
    if count < _MANY_ROWS:
        return numbers_N
    return functional.pad(numbers_N, (0, rows_for(count, least=32, parts=4) - count))


def _add_product(sums_NC: Tensor, states_NK: Tensor, weight_KC: Tensor) -> None:
    if len(states_NK) < _MANY_ROWS:
        sums_NC.addmm_(states_NK, weight_KC)
    else:
        sums_NC.add_(times_transposed(states_NK, weight_KC.T))


def _heads_of(states_NC: Tensor, width: int) -> np.ndarray:
    """[N, heads, W]."""
    return states_NC.view(len(states_NC), states_NC.shape[1] // width, width).numpy()


def _turned(module: Any) -> Tensor:
    return module.weight.detach().T


def _array(norm: Any) -> np.ndarray:
    return norm.weight.detach().numpy()
