"""What a remote model took: requests, tokens, cost, and what was lost."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from rti_exp.engines.remote.failures import Cause, RemoteDown, RemoteFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Sums since the model was made. Tokens are those that the endpoint reported.

    Tokens are counted for answers out of the cache too: they are what the method took. Cost is not: it is what was
    spent, None without prices.
    """

    answered: int = 0
    from_cache: int = 0
    """Of the answered."""
    lost: int = 0
    tries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_counts: int = 0
    """Answers that the endpoint reported no tokens for."""
    cost: float | None = None


@dataclass(slots=True)
class Ledger:
    """Keeps count, and says when too much is lost."""

    max_failure_rate: float
    window: int
    priced: bool
    answered: int = 0
    from_cache: int = 0
    tries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_counts: int = 0
    cost: float = 0.0
    lost: Counter[Cause] = field(default_factory=Counter)
    _recent: deque[bool] = field(default_factory=deque)

    @property
    def usage(self) -> Usage:
        return Usage(
            answered=self.answered,
            from_cache=self.from_cache,
            lost=self.lost.total(),
            tries=self.tries,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            without_counts=self.without_counts,
            cost=self.cost if self.priced else None,
        )

    def count_answer(
        self, prompt_tokens: int | None, completion_tokens: int | None, *, cost: float | None, cached: bool
    ) -> None:
        self.answered += 1
        self.from_cache += cached
        self.prompt_tokens += prompt_tokens or 0
        self.completion_tokens += completion_tokens or 0
        self.without_counts += prompt_tokens is None or completion_tokens is None
        if not cached:
            self.cost += cost or 0.0
            self._remember(lost=False)

    def count_loss(self, failure: RemoteFailure, what: str) -> None:
        """
        Args:
            what: the model and its address, for the message.
        Raises:
            RemoteDown: too much of what was asked lately is lost.
        """
        self.lost[failure.cause] += 1
        self._remember(lost=True)
        share = sum(self._recent) / self.window
        if len(self._recent) == self.window and share > self.max_failure_rate:
            causes = ", ".join(f"{count} {cause.value}" for cause, count in self.lost.most_common())
            raise RemoteDown(
                f"{what}: {sum(self._recent)} of the last {self.window} requests are lost, more than "
                f"max_failure_rate={self.max_failure_rate} allows (in all: {causes}); the last: {failure}"
            )

    def _remember(self, *, lost: bool) -> None:
        self._recent.append(lost)
        if len(self._recent) > self.window:
            self._recent.popleft()
