"""How far the sampler's log-probs are from the scorer's, over all tokens since the last reset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(kw_only=True)
class Mismatch:
    """Sums over tokens; those of several processes add up, `largest` apart."""

    tokens: int = 0
    difference: float = 0.0
    """Of |log pi - log pi_sampler|, in nats."""
    largest: float = 0.0
    ratio: float = 0.0
    """Of pi / pi_sampler."""
    weight: float = 0.0
    """Of the truncated importance weights."""
    truncated: int = 0

    def add(
        self, log_probs: Sequence[float], sampler_log_probs: Sequence[float], weights: Sequence[float], cap: float
    ) -> None:
        """One completion's tokens; `weights` () counts as 1 each."""
        differences = [own - other for own, other in zip(log_probs, sampler_log_probs, strict=True)]
        self.tokens += len(differences)
        self.difference += math.fsum(map(abs, differences))
        self.largest = max([self.largest, *map(abs, differences)])
        # A sampler that is far off is told by `largest`; its ratio must not overflow.
        self.ratio += math.fsum(math.exp(min(one, 100.0)) for one in differences)
        self.weight += math.fsum(weights) if weights else len(differences)
        self.truncated += sum(weight >= cap for weight in weights)

    def metrics(self, *, weighted: bool) -> dict[str, float | None]:
        """By name, for an iteration's row; None without a token."""
        names: Mapping[str, float] = {
            "engine/log_prob_difference_mean": self.difference,
            "engine/ratio_mean": self.ratio,
            **(
                {"engine/importance_weight_mean": self.weight, "engine/truncated_share": self.truncated}
                if weighted
                else {}
            ),
        }
        means = {name: total / self.tokens if self.tokens else None for name, total in names.items()}
        largest = self.largest if self.tokens else None
        return {"engine/compared_tokens": self.tokens, "engine/log_prob_difference_max": largest, **means}


def summed(parts: Sequence[Mismatch]) -> Mismatch:
    """Of all processes."""
    return Mismatch(
        tokens=sum(part.tokens for part in parts),
        difference=math.fsum(part.difference for part in parts),
        largest=max((part.largest for part in parts), default=0.0),
        ratio=math.fsum(part.ratio for part in parts),
        weight=math.fsum(part.weight for part in parts),
        truncated=sum(part.truncated for part in parts),
    )
