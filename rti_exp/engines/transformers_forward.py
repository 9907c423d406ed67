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

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.decode_batch import DecodeBatch
from rti_exp.engines.forward import Decoded, Span, by_span
from rti_exp.engines.key_value_cache import SlotCache
from rti_exp.engines.prefix_index import Row
from rti_exp.models.head import at_temperatures

_PADDING = 128
"""The most padded tokens of one pass; with more, its rows are split over two passes."""
_LOGIT_ROWS = 1024
"""The most rows of logits in float32 at once."""


class TransformersForward:
    """`rti_exp.engines.forward.Forward` by the model's own forward method.

    Raises:
        ValueError: the model's attention does not take a mask and positions from outside.
    """

    def __init__(self, model: PreTrainedModel, *, pad_id: int) -> None:
        _check_attention(model)
        self._model = model
        self._pad_id = pad_id
        # Renamed in transformers 5.
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        return self._model.device

    def new_cache(self) -> SlotCache:
        return SlotCache(self._model.config.num_hidden_layers)

    def next_logits(
        self, cache: SlotCache, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int
    ) -> Tensor:
        cache.point(slots_B, positions_B[:, None], visible)
        return self._logits(cache, tokens_B[:, None], positions_B[:, None], keep=1)[:, -1]

    def decode(self, cache: SlotCache, rows: Sequence[Row], requests: Sequence[GenerateRequest]) -> list[Decoded]:
        return DecodeBatch(self, cache, rows, requests).run()

    def feed(self, cache: SlotCache, spans: Sequence[Span], *, max_tokens: int) -> list[tuple[float, ...]]:
        log_probs: dict[int, tuple[float, ...]] = {}
        for chunk in _chunks(spans, max_tokens):
            log_probs.update(zip(chunk, self._feed(cache, [spans[index] for index in chunk]), strict=True))
        return [log_probs.get(index, ()) for index in range(len(spans))]

    def _feed(self, cache: SlotCache, spans: Sequence[Span]) -> list[tuple[float, ...]]:
        width = max(span.end - span.start for span in spans)
        tokens = np.full((len(spans), width), self._pad_id)
        positions = np.zeros((len(spans), width), dtype=np.int64)
        # Padding is written to the cache's last position, which no row uses.
        written = np.full((len(spans), width), cache.length - 1)
        for row, span in enumerate(spans):
            count = span.end - span.start
            tokens[row, :count] = span.ids[span.start : span.end]
            positions[row, :count] = written[row, :count] = np.arange(span.start, span.end)
        tokens_BT, positions_BT, written_BT = (
            torch.from_numpy(array).to(self.device) for array in (tokens, positions, written)
        )
        slots_B = torch.tensor([span.row.slot for span in spans], device=self.device)
        cache.point(slots_B, written_BT, max(span.end for span in spans))
        targets = [target for span in spans for target in span.targets]
        if not targets:
            self._logits(cache, tokens_BT, positions_BT, keep=1)
            return [()] * len(spans)
        rows = [row for row, span in enumerate(spans) for _ in span.targets]
        columns = [span.first - span.start + offset for span in spans for offset in range(len(span.targets))]
        rows_N, columns_N = torch.tensor([rows, columns], device=self.device)
        with _logits_only_at(self._model, rows_N, columns_N):
            logits_NV = self._logits(cache, tokens_BT, positions_BT, keep=0)
        temperatures = [span.temperature for span in spans for _ in span.targets]
        return by_span(spans, _log_probs(logits_NV, targets, temperatures))

    def _logits(self, cache: SlotCache, tokens_BT: Tensor, positions_BT: Tensor, *, keep: int) -> Tensor:
        """Logits of the last `keep` positions (0: all), [B, keep, V]."""
        shown_BTK = torch.arange(cache.visible, device=self.device) <= positions_BT[:, :, None]
        mask_B1TK = torch.where(shown_BTK, 0.0, -torch.inf).to(self._model.dtype)[:, None]
        arguments: dict[str, Any] = {
            "input_ids": tokens_BT,
            "attention_mask": mask_B1TK,
            "position_ids": positions_BT,
            "use_cache": True,
            "logits_to_keep": keep,
            self._cache_name: cache,
        }
        return self._model(**arguments).logits


def _log_probs(logits_NV: Tensor, targets: Sequence[int], temperatures: Sequence[float]) -> list[float]:
    """In fp32, of `targets[n]` in row n."""
    values: list[float] = []
    targets_N1 = torch.tensor(targets, device=logits_NV.device)[:, None]
    for chunk_NV, chunk_N1 in zip(logits_NV.split(_LOGIT_ROWS), targets_N1.split(_LOGIT_ROWS), strict=True):
        scaled_NV = at_temperatures(chunk_NV.float(), temperatures[len(values) : len(values) + len(chunk_NV)])
        values += scaled_NV.log_softmax(dim=1).gather(1, chunk_N1)[:, 0].tolist()
    return values


@contextmanager
def _logits_only_at(model: PreTrainedModel, rows_N: Tensor, columns_N: Tensor) -> Iterator[None]:
    """The model's logits become [N, V]: its head gets only these hidden states. Scaling and capping still apply."""
    head = model.get_output_embeddings()
    assert head is not None  # checked at construction
    handle = head.register_forward_pre_hook(lambda _module, inputs: (inputs[0][rows_N, columns_N],))
    try:
        yield
    finally:
        handle.remove()


def _chunks(spans: Sequence[Span], max_tokens: int) -> Iterator[list[int]]:
    """Indices of spans with something to compute, longest first: few passes, with little padding in each."""
    width = {index: span.end - span.start for index, span in enumerate(spans) if span.end > span.start}
    chunk: list[int] = []
    widest, real = 0, 0
    for index in sorted(width, key=lambda index: (-width[index], index)):
        padded = widest * (len(chunk) + 1)
        if chunk and (padded > max_tokens or padded - real - width[index] > _PADDING):
            yield chunk
            chunk, real = [], 0
        if not chunk:
            widest = width[index]
        chunk.append(index)
        real += width[index]
    if chunk:
        yield chunk


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
