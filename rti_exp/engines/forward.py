"""Forward passes of any transformers causal language model over the slots of a cache."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rti_exp.engines.slots import SlotCache
from rti_exp.engines.spans import Span, by_span, chosen_log_probs
from rti_exp.engines.straight import StraightDecoder, straight_decoder

_PADDING = 128
"""Padded tokens that one pass may waste before its rows are split over two."""
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""By how much, in parts of the largest, hidden states of the two ways may differ."""


class SlotForward:
    """Runs `model` over `cache`.

    Raises:
        ValueError: the model's attention cannot be run with a mask and positions of our own.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int) -> None:
        _check_attention(model)
        self._model = model
        self._pad_id = pad_id
        # Renamed in transformers 5.
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._straight = straight_decoder(model)
        self._proven: set[tuple[object, ...]] = set()

    @property
    def device(self) -> torch.device:
        return self._model.device

    def new_cache(self) -> SlotCache:
        return SlotCache(self._model.config.num_hidden_layers)

    def next_logits(
        self, cache: SlotCache, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int
    ) -> Tensor:
        """[B, V] after these tokens, one in each of the first B slots, of which `visible` positions are looked at."""
        cache.point(slots_B * cache.length + positions_B, visible)
        tokens_B1, positions_B1 = tokens_B[:, None], positions_B[:, None]
        shown_B1K = (torch.arange(visible, device=self.device) <= positions_B1)[:, None]
        hidden_B1D = self._hidden(cache, tokens_B1, positions_B1, shown_B1K)
        if hidden_B1D is None:
            return self._model_logits(cache, tokens_B1, positions_B1, shown_B1K, keep=1)[:, -1]
        return self._head(hidden_B1D)[:, -1]

    def _logits_at(
        self,
        cache: SlotCache,
        tokens_BT: Tensor,
        positions_BT: Tensor,
        shown_BTK: Tensor,
        rows_N: Tensor,
        columns_N: Tensor,
    ) -> Tensor:
        """Logits at these places, [N, V]."""
        hidden_BTD = self._hidden(cache, tokens_BT, positions_BT, shown_BTK)
        if hidden_BTD is not None:
            return self._head(hidden_BTD[rows_N, columns_N])
        with _logits_only_at(self._model, rows_N, columns_N):
            return self._model_logits(cache, tokens_BT, positions_BT, shown_BTK, keep=0)

    def _head(self, hidden: Tensor) -> Tensor:
        head = self._model.get_output_embeddings()
        assert head is not None  # checked at construction
        return head(hidden)

    def _hidden(self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, shown_BTK: Tensor) -> Tensor | None:
        """Final hidden states by the straight decoder, [B, T, D]; None where there is none for this model."""
        self.prove()
        if self._straight is None:
            return None
        return self._straight(cache, tokens_BT, positions_BT, _mask(shown_BTK, self._straight.weight.dtype))

    def prove(self) -> None:
        """Give the straight decoder up if it differs from the model by more than rounding, in the arithmetic of now.

        Tried out once for each arithmetic, on made-up rows: five tokens, then a sixth, with one place hidden.
        """
        if self._straight is None:
            return
        weight = self._straight.weight
        place = weight.device.type
        autocast = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None
        kind = (place, weight.dtype, autocast)
        if kind in self._proven:
            return
        allowed = _ROUNDING.get(autocast or weight.dtype, 0.0)
        for own_BTD, found_BTD in zip(self._made_up(None), self._made_up(self._straight), strict=True):
            if not (found_BTD - own_BTD).abs().max() <= allowed * own_BTD.abs().max():
                self._straight = None
                return
        self._proven.add(kind)

    def _made_up(self, decoder: StraightDecoder | None) -> list[Tensor]:
        """Hidden states of two calls over a cache of its own, by `decoder` or else the model, [2, T, D] each."""
        cache = SlotCache(self._model.config.num_hidden_layers)
        cache.reserve(2, 8)
        found: list[Tensor] = []
        for start, end in ((0, 5), (5, 6)):
            positions_BT = torch.arange(start, end, device=self.device).expand(2, -1)
            rows_B1 = torch.arange(2, device=self.device)[:, None]
            cache.point((rows_B1 * cache.length + positions_BT).flatten(), end, None)
            tokens_BT = (11 * rows_B1 + 7 * positions_BT) % self._model.config.vocab_size
            shown_BTK = torch.arange(end, device=self.device) <= positions_BT[:, :, None]
            shown_BTK[1, :, 2:3] &= (
                positions_BT[1, :, None] == 2
            )  # but for itself nobody sees the second row's third token
            if decoder is None:
                arguments = self._arguments(cache, tokens_BT, positions_BT, shown_BTK)
                found.append(self._model.model(**arguments).last_hidden_state)
            else:
                found.append(decoder(cache, tokens_BT, positions_BT, _mask(shown_BTK, decoder.weight.dtype)))
        return found

    def _model_logits(
        self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, shown_BTK: Tensor, *, keep: int
    ) -> Tensor:
        """The model's own way: logits of the last `keep` positions (0: all), [B, keep, V]."""
        return self._model(**self._arguments(cache, tokens_BT, positions_BT, shown_BTK), logits_to_keep=keep).logits

    def _arguments(
        self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, shown_BTK: Tensor
    ) -> dict[str, Any]:
        return {
            "input_ids": tokens_BT,
            "attention_mask": _mask(shown_BTK, self._model.dtype),
            "position_ids": positions_BT,
            "use_cache": True,
            self._cache_name: cache,
        }

    def feed(self, cache: SlotCache, spans: Sequence[Span], *, max_tokens: int) -> list[tuple[float, ...]]:
        """Feed all spans, in passes of at most `max_tokens` padded tokens; the wanted log-probs, in their order."""
        log_probs: dict[int, tuple[float, ...]] = {}
        for chunk in _chunks(spans, max_tokens):
            wanted = self._feed(cache, [spans[index] for index in chunk])
            log_probs.update(zip(chunk, wanted, strict=True))
        return [log_probs.get(index, ()) for index in range(len(spans))]

    def _feed(self, cache: SlotCache, spans: Sequence[Span]) -> list[tuple[float, ...]]:
        width = max(span.end - span.start for span in spans)
        tokens = np.full((len(spans), width), self._pad_id)
        positions = np.zeros((len(spans), width), dtype=np.int64)
        written = np.full((len(spans), width), cache.length - 1)
        for row, span in enumerate(spans):
            count = span.end - span.start
            tokens[row, :count] = span.ids[span.start : span.end]
            positions[row, :count] = np.arange(span.start, span.end)
        real = np.arange(width) < np.array([[span.end - span.start] for span in spans])
        written[real] = positions[real]
        slots = np.array([span.row.slot for span in spans])
        places = torch.from_numpy((slots[:, None] * cache.length + written).ravel()).to(self.device)
        visible = max(span.end for span in spans)
        in_front = bool((slots == np.arange(len(slots))).all())
        cache.point(places, visible, None if in_front else torch.from_numpy(slots).to(self.device))
        positions_BT = torch.from_numpy(positions).to(self.device)
        shown_BTK = torch.arange(visible, device=self.device) <= positions_BT[:, :, None]
        tokens_BT = torch.from_numpy(tokens).to(self.device)
        if not any(span.targets for span in spans):
            if self._hidden(cache, tokens_BT, positions_BT, shown_BTK) is None:
                self._model_logits(cache, tokens_BT, positions_BT, shown_BTK, keep=1)
            return [()] * len(spans)
        return self._log_probs(cache, spans, tokens_BT, positions_BT, shown_BTK)

    def _log_probs(
        self, cache: SlotCache, spans: Sequence[Span], tokens_BT: Tensor, positions_BT: Tensor, shown_BTK: Tensor
    ) -> list[tuple[float, ...]]:
        rows = [row for row, span in enumerate(spans) for _ in span.targets]
        columns = [span.first - span.start + offset for span in spans for offset in range(len(span.targets))]
        targets = [target for span in spans for target in span.targets]
        places_NN = torch.tensor([rows, columns], device=self.device)
        logits_NV = self._logits_at(cache, tokens_BT, positions_BT, shown_BTK, places_NN[0], places_NN[1])
        return by_span(spans, chosen_log_probs(logits_NV, targets))


def _mask(shown_BTK: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, T, K] to be added to the attention's scores."""
    return torch.where(shown_BTK, 0.0, -torch.inf).to(dtype)[:, None]


@contextmanager
def _logits_only_at(model: PreTrainedModel, rows_N: Tensor, columns_N: Tensor) -> Iterator[None]:
    """The model's logits come out as [N, V]: its head sees these hidden states only, scaling and capping included."""
    head = model.get_output_embeddings()
    assert head is not None  # checked at construction
    handle = head.register_forward_pre_hook(lambda _module, inputs: (inputs[0][rows_N, columns_N],))
    try:
        yield
    finally:
        handle.remove()


def _chunks(spans: Sequence[Span], max_tokens: int) -> Iterator[list[int]]:
    """Indices of spans with something to feed, longest first, then by slot: few passes, and little padding in each."""
    width = {index: span.end - span.start for index, span in enumerate(spans) if span.end > span.start}
    chunk: list[int] = []
    widest, real = 0, 0
    for index in sorted(width, key=lambda index: (-width[index], index)):
        padded = widest * (len(chunk) + 1)
        if chunk and (padded > max_tokens or padded - real - width[index] > _PADDING):
            yield sorted(chunk, key=lambda index: spans[index].row.slot)
            chunk, real = [], 0
        if not chunk:
            widest = width[index]
        chunk.append(index)
        real += width[index]
    if chunk:
        yield sorted(chunk, key=lambda index: spans[index].row.slot)


def _check_attention(model: PreTrainedModel) -> None:
    config = model.config
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in ("sdpa", "eager"):
        raise ValueError(f'attention {implementation!r} takes no mask per row: load the model with "sdpa" or "eager"')
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        partial = set(layer_types) != {"full_attention"}
    else:
        partial = getattr(config, "sliding_window", None) is not None
    if partial:
        raise ValueError("models with sliding or linear attention are not supported by the local engine")
    if model.get_output_embeddings() is None:
        raise ValueError("the model has no language modelling head")
