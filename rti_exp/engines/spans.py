"""Stretches of tokens to be fed, and reading the log-probs that are wanted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rti_exp.engines.prefixes import Row

LOGIT_ROWS = 1024
"""So many rows of logits are in float32 at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens `ids[start:end]` to be fed into `row`, and the tokens whose log-probs are wanted.

    The first of `targets` follows position `first`, which is not before `start`; none: keys and values only.
    """

    row: Row
    ids: tuple[int, ...]
    start: int
    end: int
    first: int = 0
    targets: tuple[int, ...] = ()


def chosen_log_probs(logits_NV: Tensor, targets: Sequence[int]) -> list[float]:
    """At temperature 1 in fp32; `targets[n]` is chosen of row n."""
    values: list[float] = []
    targets_N1 = torch.tensor(targets, device=logits_NV.device)[:, None]
    for chunk_NV, chosen_N1 in zip(logits_NV.split(LOGIT_ROWS), targets_N1.split(LOGIT_ROWS), strict=True):
        values += chunk_NV.float().log_softmax(dim=1).gather(1, chosen_N1)[:, 0].tolist()
    return values


def by_span(spans: Sequence[Span], values: Sequence[float]) -> list[tuple[float, ...]]:
    """`values`, one for each target in order, told apart again."""
    results: list[tuple[float, ...]] = []
    taken = 0
    for span in spans:
        results.append(tuple(values[taken : taken + len(span.targets)]))
        taken += len(span.targets)
    return results
