"""The engine protocol: generates and scores token ids with one set of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rti_exp.types import Completion, Failure, FailureKind


class EngineUnavailable(Exception):
    """The engine stayed down after its retries. Interventions that need it are lost and counted; the run continues."""


class EngineUnusable(RuntimeError):
    """A fatal engine error (a wrong key, a wrong model): the job must stop."""


class RequestsFailed(RuntimeError):
    """Some requests of a call failed; `rti_exp.engines.failed_requests` turns this into a `Failure` for each.

    Args:
        failures: By the index of the request.
        answered: Results of other requests, by index; requests in neither were not run and can be repeated.
    """

    def __init__(self, failures: Mapping[int, Failure], answered: Mapping[int, Any] | None = None) -> None:
        super().__init__("; ".join(dict.fromkeys(failure.reason for failure in failures.values())))
        self.failures = dict(failures)
        self.answered = dict(answered or {})

    @classmethod
    def too_long(cls, reasons: Mapping[int, str]) -> RequestsFailed:
        """Requests longer than the model's context window; no request of the call was run."""
        return cls({index: Failure(kind=FailureKind.TOO_LONG, reason=reason) for index, reason in reasons.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling options.

    Returned log-probs are those of the distribution that sampled: of the logits over `temperature`, renormalised over
    the nucleus of `top_p`. Temperature 0 is greedy; its log-probs are at temperature 1.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    """A completion ends with (and includes) the first of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Continue `prompt_ids`. The sample depends on `seed` alone, not on the rest of the batch."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    log_probs: bool = True
    """Whether the completion's log-probs will be used. If not, an engine may return its sampler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Log-probs of `token_ids` after `prompt_ids`, of the logits over `temperature`."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    temperature: float = 1.0


class Engine(Protocol):
    """Batched generation and scoring with one set of weights.

    Callers always pass whole prompts. An engine caches keys and values and prefills only new tokens (turns of an
    episode, members of a group, roles that append to a history).
    """

    generated_tokens: int
    scored_tokens: int
    """Counters since construction: sampled tokens, and tokens whose log-prob was requested."""

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            EngineUnavailable: the engine stayed down after retries.
            RequestsFailed: some requests exceed the context window or were lost.
        """
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probs in the order of `requests`, each as long as its `token_ids`.

        Raises:
            EngineUnavailable: the engine stayed down after retries.
            RequestsFailed: some requests exceed the context window or were lost.
        """
        ...

    def sync(self, policy_version: int) -> None:
        """Call after the weights changed: clears the cache and stamps completions with the new version."""
        ...
