"""Counters of one remote model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rti_exp.engines.remote.failures import Cause


@dataclass(slots=True, kw_only=True)
class Usage:
    """Totals since the model was created. Token counts are the endpoint's, and include answers from the cache."""

    answered: int = 0
    from_cache: int = 0
    """How many of the answers came from the cache."""
    tries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_counts: int = 0
    """Answers for which the endpoint reported no token counts."""
    lost_by_cause: Counter[Cause] = field(default_factory=Counter)

    @property
    def lost(self) -> int:
        return self.lost_by_cause.total()
