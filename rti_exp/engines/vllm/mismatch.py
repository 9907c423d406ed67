"""How far the sampler's log-probs are from the scorer's, over all tokens since the last reset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Mismatch:
    """Sums over tokens, and the largest difference."""

    tokens: int = 0
    difference: float = 0.0
    """Sum of |log pi - log pi_sampler|, in nats."""
    largest: float = 0.0
    ratio: float = 0.0
    """Sum of pi / pi_sampler."""
    weight: float = 0.0
    """Sum of the truncated importance weights."""
    truncated: int = 0

    def add(
        self, log_probs: Sequence[float], sampler_log_probs: Sequence[float], weights: Sequence[float], cap: float
    ) -> None:
        """Adds the tokens of one completion; empty `weights` count as 1 each."""
        differences = [pi - sampler for pi, sampler in zip(log_probs, sampler_log_probs, strict=True)]
        self.tokens += len(differences)
        self.difference += math.fsum(map(abs, differences))
        self.largest = max([self.largest, *map(abs, differences)])
        # The clamp keeps the ratio of a sampler that is far off from overflowing; `largest` still shows it.
        self.ratio += math.fsum(math.exp(min(difference, 100.0)) for difference in differences)
        self.weight += math.fsum(weights) if weights else len(differences)
        self.truncated += sum(weight >= cap for weight in weights)

    def metrics(self, *, weighted: bool) -> dict[str, float | None]:
        """Metrics by name, for an iteration's row; None if there was no token."""
        means = {"engine/log_prob_difference_mean": self.difference, "engine/ratio_mean": self.ratio}
        if weighted:
            means |= {"engine/importance_weight_mean": self.weight, "engine/truncated_share": self.truncated}
        return {
            "engine/compared_tokens": self.tokens,
            "engine/log_prob_difference_max": self.largest if self.tokens else None,
            **{name: total / self.tokens if self.tokens else None for name, total in means.items()},
        }


def summed(parts: Sequence[Mismatch]) -> Mismatch:
    """The mismatch of all processes."""
    return Mismatch(
        tokens=sum(part.tokens for part in parts),
        difference=math.fsum(part.difference for part in parts),
        largest=max((part.largest for part in parts), default=0.0),
        ratio=math.fsum(part.ratio for part in parts),
        weight=math.fsum(part.weight for part in parts),
        truncated=sum(part.truncated for part in parts),
    )
