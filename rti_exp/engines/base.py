"""What an engine is: something that continues token ids, and scores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rti_exp.types import Completion


class EngineUnavailable(Exception):
    """The engine stayed down after its retries; interventions that need it are lost and counted."""


class EngineUnusable(RuntimeError):
    """The engine is of no use to the whole job, which must end; no role's failure that costs attempts only."""


class RequestsLost(EngineUnavailable):
    """Some requests of a call got no answer, after their retries; the others did.

    `answered` has the completions and `reasons` says why there is none, both by the index of the request.
    """

    def __init__(self, answered: Mapping[int, Completion], reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.answered = dict(answered)
        self.reasons = dict(reasons)


class RequestsTooLong(ValueError):
    """Some requests of a call need more positions than the model has; nothing of the call has been done.

    `reasons` says why, by the index of the request.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to draw. `temperature` 0 is greedy. Log-probs that come back are always at temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    stop_ids: tuple[int, ...] = ()
    """A completion ends with (and includes) the first of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Continue `prompt_ids`. The draw is fixed by `seed` alone, whatever else is in the batch."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    log_probs: bool = True
    """Whether the completion's log-probs will be used; without, an engine may leave it at those of its sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Log-probs at temperature 1 of `token_ids` after `prompt_ids`."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


class Engine(Protocol):
    """Batched generation and scoring with one set of weights.

    Prompts are always given whole; an engine keeps the keys and values of what it has already seen and
    prefills only what is new (turns of an episode, members of a group, roles that append to a history).
    """

    generated_tokens: int
    scored_tokens: int
    """Counters since construction: tokens sampled; tokens whose log-prob was asked for."""

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            EngineUnavailable: the engine stayed down after retries.
            RequestsTooLong: naming the requests that the model has no positions for.
        """
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1, in the order of `requests`, each as long as its `token_ids`.

        Raises:
            EngineUnavailable: the engine stayed down after retries.
            RequestsTooLong: naming the requests that the model has no positions for.
        """
        ...

    def sync(self, policy_version: int) -> None:
        """Weights have changed: forget cached keys and values, stamp completions with the new version."""
        ...
