"""A gate on the largest surprisal of a single token, instead of the mean that the perplexity takes."""

from __future__ import annotations

from collections.abc import Sequence


class SurprisalGate:
    never_opens = False
    shadow = False

    def __init__(self, *, max_surprisal: float = 5.0) -> None:
        """
        Args:
            max_surprisal: In nats.
        """
        self.max_surprisal = max_surprisal

    def passes(self, log_probs: Sequence[float]) -> bool:
        return -min(log_probs) <= self.max_surprisal
