"""What the local engine needs of a way to run its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.key_value_cache import KeyValueCache
from rti_exp.engines.prefix_index import Row

Decoded = tuple[tuple[int, ...], tuple[float, ...]]
"""Token ids and their log-probs, of the distribution that sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens `ids[start:end]` to compute in `row`, which holds the earlier ones, and tokens to score.

    The first of `targets` follows position `first`, which is not before `start`. Without targets only keys and values
    are wanted.
    """

    row: Row
    ids: tuple[int, ...]
    start: int
    end: int
    first: int = 0
    targets: tuple[int, ...] = ()
    temperature: float = 1.0
    """Of the targets' log-probs."""


class Forward(Protocol):
    """Forward passes over a cache of its own layout."""

    @property
    def device(self) -> torch.device: ...

    def new_cache(self) -> KeyValueCache: ...

    def next_logits(self, cache: Any, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int) -> Tensor:
        """[B, V] after these tokens, each in another slot; none stands at position `visible` or later."""
        ...

    def feed(self, cache: Any, spans: Sequence[Span], *, max_tokens: int) -> list[tuple[float, ...]]:
        """Computes all spans, in passes of at most `max_tokens` tokens; the log-probs of each span's targets."""
        ...

    def decode(self, cache: Any, rows: Sequence[Row], requests: Sequence[GenerateRequest]) -> list[Decoded]:
        """Decodes each request in its row, which holds all of its prompt but the last token.

        Raises:
            FloatingPointError: a log-prob is not finite.
        """
        ...


def by_span(spans: Sequence[Span], values: Sequence[float]) -> list[tuple[float, ...]]:
    """Splits `values`, one for each target in order, by span."""
    results: list[tuple[float, ...]] = []
    start = 0
    for span in spans:
        results.append(tuple(values[start : start + len(span.targets)]))
        start += len(span.targets)
    return results
