"""The perplexity of a correction and its gate, in log space to avoid overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_perplexity(log_probs: Sequence[float]) -> float:
    """log PPL = -(1/T) sum_t log p_t, in nats; inf if a token has probability 0, NaN if a log-prob is NaN.

    Args:
        log_probs: [T] of the generated tokens, under the rollout prompt at temperature 1.

    Raises:
        ValueError: no tokens.
    """
    if not len(log_probs):
        raise ValueError("the perplexity of no tokens is undefined")
    return -math.fsum(log_probs) / len(log_probs)


def passes_gate(log_perplexity: float, delta: float) -> bool:
    """Whether PPL <= delta, compared as log PPL <= log delta.

    PPL >= 1, so with delta below 1 nothing passes (the method is then exactly GRPO). With delta inf even an infinite
    perplexity passes. A NaN perplexity never passes.

    Raises:
        ValueError: delta is NaN or negative.
    """
    if math.isnan(delta) or delta < 0:
        raise ValueError(f"delta={delta}: must be a number >= 0, or inf")
    if math.isnan(log_perplexity) or delta < 1:
        return False
    return log_perplexity <= math.log(delta)
