"""Qwen3's decoder on one core in float32, over tokens that each know their slot and position.

The same function of the same weights as the model's own forward pass, rounded otherwise. Between matmuls there is one
compiled step (`rti_exp.engines.kernels`), and a token reads the keys and values of its own context only: rows of
different lengths cost neither masks nor padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from rti_exp.compiled import can_compile
from rti_exp.engines.slots import LENGTH_STEP, Slots, rounded
from rti_exp.engines.spans import LOGIT_ROWS, Span, by_span, chosen_log_probs
from rti_exp.models.qwen import PlainQwen3, is_plain_qwen3

_ROUNDING = 1e-4
"""By how much, in parts of the largest, hidden states may differ from the model's."""


def flat_forward(model: PreTrainedModel) -> FlatForward | None:
    """None without the compiler, for a model that is not just Qwen3's, or if the two differ.

    Tried out on made-up rows with the weights of now; call it in inference mode and `in_flat_arithmetic`.
    """
    if not can_compile() or not is_plain_qwen3(model):
        return None
    found = FlatForward(model)
    return found if found.agrees() else None


def in_flat_arithmetic(model: PreTrainedModel) -> bool:
    """Whether the compiled steps are for what is computed now: float32 on one thread of the CPU."""
    on_cpu = model.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and model.dtype == torch.float32 and torch.get_num_threads() == 1


class FlatCache(Slots):
    """Keys [slots, key heads, W, length] and values [slots, key heads, length, W] of each layer.

    Memory: as of `rti_exp.engines.slots.SlotCache`.
    """

    in_front = False

    def __init__(self, *, layers: int, key_heads: int, width: int) -> None:
        self.slot_count = self.length = 0
        self._key_heads, self._width = key_heads, width
        self._used = 0
        """So many first slots may hold something."""
        self.keys = [self._empty(0, 0, keys=True)] * layers
        self.values = [self._empty(0, 0, keys=False)] * layers

    def _empty(self, slots: int, length: int, *, keys: bool) -> Tensor:
        own = (self._width, length) if keys else (length, self._width)
        return torch.empty((slots, self._key_heads, *own))

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        if most_slots > self.slot_count or length > self.length:
            # Memory of slots that were never written to is not there.
            self.slot_count = max(most_slots, self.slot_count)
            if length > self.length:
                self.length = rounded(max(length, self.length * 3 // 2), LENGTH_STEP)
            for layer in range(len(self.keys)):
                self.keys[layer] = self._grown(self.keys[layer], keys=True)
                self.values[layer] = self._grown(self.values[layer], keys=False)
        self._used = max(self._used, slots)

    def _grown(self, stored: Tensor, *, keys: bool) -> Tensor:
        grown = self._empty(self.slot_count, self.length, keys=keys)
        _, _, first, second = stored.shape
        grown[: self._used, :, :first, :second] = stored[: self._used]
        return grown

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        from rti_exp.engines import kernels  # needs the compiler

        pairs = np.array(sources, np.int64), np.array(targets, np.int64)
        for keys, values in zip(self.keys, self.values, strict=True):
            kernels.copy(keys.numpy(), values.numpy(), *pairs, length)


class FlatForward(PlainQwen3):
    """Runs `model` over a `FlatCache`; the caller sees to inference mode."""

    def __init__(self, model: PreTrainedModel) -> None:
        from rti_exp.engines import kernels  # needs the compiler

        super().__init__(model)
        self._kernels = kernels
        self._scores, self._powers = np.empty(0, np.float32), np.empty(0, np.int32)
        self._cosine_LP = self._sine_LP = np.empty((0, self._width // 2), np.float32)

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
        hidden_BD = self._hidden(cache, tokens_B, slots_B, positions_B, torch.arange(len(tokens_B)))
        return self._model.lm_head(hidden_BD)

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
                values += chosen_log_probs(self._model.lm_head(chunk_MD), chosen)
        return by_span(spans, values)

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
        self._prepare(cache.length)
        decoder = self._model.model
        states_ND = functional.embedding(tokens_N, decoder.embed_tokens.weight)
        all_N = torch.arange(len(tokens_N))
        for index, layer in enumerate(decoder.layers):
            last = index == len(decoder.layers) - 1
            normed_ND = self._normed(states_ND, layer.input_layernorm)
            where = (slots_N.numpy(), positions_N.numpy(), cache.keys[index].numpy(), cache.values[index].numpy())
            attended_MD = self._attended(layer.self_attn, normed_ND, rows_M if last else all_N, where)
            if last and len(rows_M) < len(states_ND):
                states_ND = states_ND.index_select(0, rows_M)
            states_ND.addmm_(attended_MD, layer.self_attn.o_proj.weight.T)
            gated_NF = self._gated(layer.mlp, self._normed(states_ND, layer.post_attention_layernorm))
            states_ND.addmm_(gated_NF, layer.mlp.down_proj.weight.T)
        return self._normed(states_ND, decoder.norm)

    def _prepare(self, length: int) -> None:
        """Angles and scratch for so many positions."""
        if length > len(self._scores):
            angles_LP = torch.arange(length)[:, None].float() * self._model.model.rotary_emb.inv_freq
            self._cosine_LP, self._sine_LP = angles_LP.cos().numpy(), angles_LP.sin().numpy()
            self._scores = np.empty(length, np.float32)
            self._powers = np.empty(max(length, self._model.config.intermediate_size), np.int32)

    def _normed(self, states_ND: Tensor, norm: Any) -> Tensor:
        made_ND = torch.empty_like(states_ND)
        self._kernels.norm(states_ND.numpy(), _array(norm.weight), self._epsilon, made_ND.numpy())
        return made_ND

    def _attended(self, module: Any, normed_ND: Tensor, rows_M: Tensor, where: tuple[np.ndarray, ...]) -> Tensor:
        """[M, H * W]; `where`: slots, positions, keys, values."""
        made_NC = _projected(normed_ND, (module.q_proj, module.k_proj, module.v_proj))
        heads_NAW = made_NC.numpy().reshape(len(made_NC), -1, self._width)
        norms = _array(module.q_norm.weight), _array(module.k_norm.weight)
        self._kernels.store(heads_NAW, *norms, self._cosine_LP, self._sine_LP, self._epsilon, *where)
        found_MD = torch.empty(len(rows_M), self._heads * self._width)
        found_MHW = found_MD.numpy().reshape(len(found_MD), self._heads, self._width)
        scratch = self._scores, self._powers
        self._kernels.attend(heads_NAW, rows_M.numpy(), module.scaling, *where, *scratch, found_MHW)
        return found_MD

    def _gated(self, module: Any, normed_ND: Tensor) -> Tensor:
        """[N, F]."""
        both_NF = _projected(normed_ND, (module.gate_proj, module.up_proj))
        made_NF = torch.empty(len(both_NF), both_NF.shape[1] // 2)
        self._kernels.gate(both_NF.numpy(), made_NF.numpy(), self._powers)
        return made_NF


def _projected(states_ND: Tensor, modules: tuple[Any, ...]) -> Tensor:
    """What linear layers without bias make of the same input, side by side, [N, C]."""
    sizes = [module.weight.shape[0] for module in modules]
    made_NC = torch.empty(len(states_ND), sum(sizes))
    for part_NC, module in zip(made_NC.split(sizes, dim=1), modules, strict=True):
        torch.mm(states_ND, module.weight.T, out=part_NC)
    return made_NC


def _array(weight: Tensor) -> np.ndarray:
    return weight.detach().numpy()
