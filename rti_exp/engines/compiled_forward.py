"""The local engine's view of a fast path: its spans and requests as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.decode_batch import DecodeBatch, decoded, stop_table
from rti_exp.engines.forward import Decoded, Span, by_span
from rti_exp.engines.key_value_cache import KeyValueCache
from rti_exp.engines.prefix_index import Row
from rti_exp.engines.sampling import uniforms
from rti_exp.models.fast_path import FastPath


class CompiledForward:
    """`rti_exp.engines.forward.Forward` by a fast path, on the CPU."""

    device = torch.device("cpu")

    def __init__(self, path: FastPath, vocabulary: int) -> None:
        self._path = path
        self._decoder = path.rollout
        self._vocabulary = vocabulary

    def applies(self) -> bool:
        """Whether it can be used for the model as it is now; to be called before other methods."""
        if not self._path.applies():
            return False
        self._decoder.refresh()
        return True

    def new_cache(self) -> KeyValueCache:
        return self._decoder.new_cache()

    def next_logits(self, cache: Any, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int) -> Tensor:
        return self._decoder.next_logits(cache, tokens_B, slots_B, positions_B)

    def feed(self, cache: Any, spans: Sequence[Span], *, max_tokens: int) -> list[tuple[float, ...]]:
        lengths = np.array([span.end - span.start for span in spans])
        tokens_N = np.array([token for span in spans for token in span.ids[span.start : span.end]], np.int64)
        slots_N = np.repeat([span.row.slot for span in spans], lengths)
        offsets = np.cumsum(lengths) - lengths
        positions_N = np.arange(len(tokens_N)) - np.repeat(offsets - [span.start for span in spans], lengths)
        rows_M = np.array(
            [
                offset + span.first - span.start + index
                for offset, span in zip(offsets, spans, strict=True)
                for index in range(len(span.targets))
            ],
            np.int64,
        )
        targets = [target for span in spans for target in span.targets]
        values = self._decoder.log_probs(
            cache,
            tokens_N,
            slots_N,
            positions_N,
            rows_M=rows_M,
            targets=targets,
            temperatures=[span.temperature for span in spans for _ in span.targets],
            max_tokens=max_tokens,
        )
        return by_span(spans, values)

    def decode(self, cache: Any, rows: Sequence[Row], requests: Sequence[GenerateRequest]) -> list[Decoded]:
        samplings = [request.sampling for request in requests]
        if any(sampling.top_p < 1 for sampling in samplings):
            return DecodeBatch(self, cache, rows, requests).run()
        temperatures_M = np.array([sampling.temperature for sampling in samplings], np.float32)
        limits_M = np.array([sampling.max_tokens for sampling in samplings])
        steps = limits_M.max() if temperatures_M.any() else 1
        ids_TM, log_probs_TM, counts_M = self._decoder.decode(
            cache,
            np.array([row.slot for row in rows]),
            np.array([request.prompt_ids[-1] for request in requests]),
            np.array([len(request.prompt_ids) - 1 for request in requests]),
            temperatures_M=temperatures_M,
            uniforms_TM=uniforms([request.seed for request in requests], steps).T.contiguous().numpy(),
            limits_M=limits_M,
            stops_MV=stop_table([sampling.stop_ids for sampling in samplings], self._vocabulary),
        )
        return decoded(ids_TM, log_probs_TM, counts_M.tolist())
