"""Sampling with vLLM, scoring with the model that is trained.

vLLM runs in a process of its own (`rti_exp.engines.vllm.worker`), in this Python environment or in another one: what it
requires may be at odds with what the trainer requires. It is given token ids and gives token ids. After each change of
weights, and before it samples again, it is given all of them, and forgets its keys and values.

The log-probs of what it samples are computed anew by the trainer's own scorer: behaviour log-probs, gate and rho come
from one place, and the ratio of a first update is exactly 1. How far vLLM's own were from them is counted
(`mismatch`), and can be weighed (`importance_cap`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import EngineUnusable, GenerateRequest, RequestsTooLong, ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.vllm.mismatch import Mismatch
from rti_exp.engines.vllm.process import WorkerEnded
from rti_exp.engines.vllm.sampler import Sampler
from rti_exp.objective.importance import truncated_importance_weights
from rti_exp.types import Completion

CHECKED_TOKENS = 256
"""A mismatch of fewer tokens says too little to end a run."""


class VllmEngine:
    """Generates with vLLM and scores with `model`, which may be trained meanwhile: call `sync` after each change.

    The same seed gives the same draw but where rounding in another batch turns it, which a token in thousands does.

    Args:
        model: a transformers causal language model that vLLM knows too, on the device that trains.
        pad_id, max_batch, cache_rows, prefill_tokens: as `LocalEngine`'s, for scoring; `max_batch` is also how many
            sequences vLLM decodes at once.
        importance_cap: completions have truncated importance weights (`rti_exp.objective.importance`), at most this;
            None leaves them out.
        max_difference: mean |log pi - log pi_sampler| in nats, of one call, above which sampler and policy are
            no more the same model.
        sampler: keyword arguments of `Sampler`.

    Raises:
        ValueError: the model's attention cannot be scored with rows of different lengths.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_id: int = 0,
        max_batch: int = 256,
        cache_rows: int = 256,
        prefill_tokens: int = 4096,
        max_context: int | None = None,
        importance_cap: float | None = None,
        max_difference: float = 0.5,
        **sampler: Any,
    ) -> None:
        self.model = model
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.rescored_tokens = 0
        """Sampled tokens whose log-probs were computed anew; not among `scored_tokens`."""
        self.mismatch = Mismatch()
        """Since it was last replaced by a new one."""
        self.importance_cap = importance_cap
        self._max_difference = max_difference
        self._scorer = LocalEngine(
            model, pad_id=pad_id, max_batch=max_batch, cache_rows=cache_rows, prefill_tokens=prefill_tokens
        )
        positions = getattr(model.config, "max_position_embeddings", None)
        self._limit = min((length for length in (max_context, positions) if length is not None), default=None)
        self._sampler = Sampler(model, max_context=self._limit, max_batch=max_batch, **sampler)

    @property
    def weight_seconds(self) -> float:
        """Seconds that giving weights to vLLM took since construction, writing them included."""
        return self._sampler.weight_seconds

    def sync(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self._scorer.sync(policy_version)
        self._sampler.changed(policy_version)

    def close(self) -> None:
        """End vLLM's process; the next call starts another one."""
        self._sampler.close()

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """As `LocalEngine.score`."""
        scores = self._scorer.score(requests)
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        return scores

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            ValueError: an empty prompt, or no token to generate.
            RequestsTooLong: more tokens than `max_context`, or than the model has positions.
            EngineUnavailable: vLLM's process cannot be started, raised, or ended twice.
            EngineUnusable: what vLLM samples is not what the policy would.
            FloatingPointError: log-probs that are not finite.
        """
        self._check_lengths(requests)
        if not requests:
            return []
        try:
            answers = self._sampler.generate(requests)
        except WorkerEnded:
            answers = self._sampler.generate(requests)  # once more, with a new process
        sampled = [(tuple(answer["token_ids"]), tuple(answer["log_probs"])) for answer in answers]
        if not all(math.isfinite(value) for _, log_probs in sampled for value in log_probs):
            raise FloatingPointError("vLLM gives log-probs that are not finite")
        self.generated_tokens += sum(len(token_ids) for token_ids, _ in sampled)
        log_probs = self._rescored(requests, sampled)
        weights = self._compared(log_probs, sampled)
        return [
            Completion(
                token_ids=token_ids,
                log_probs=log_probs.get(index, own),
                stop_reason="stop" if token_ids[-1] in request.sampling.stop_ids else "length",
                policy_version=self.policy_version,
                importance_weights=weights.get(index, ()),
            )
            for index, (request, (token_ids, own)) in enumerate(zip(requests, sampled, strict=True))
        ]

    def _check_lengths(self, requests: Sequence[GenerateRequest]) -> None:
        lengths = [(len(request.prompt_ids), request.sampling.max_tokens) for request in requests]
        if any(prompt < 1 or new < 1 for prompt, new in lengths):
            raise ValueError("a request needs a prompt of at least one token, and max_tokens of at least 1")
        limit = self._limit
        reasons = {
            index: f"{prompt} + {new} tokens exceed the {limit} that the engine has positions for"
            for index, (prompt, new) in enumerate(lengths)
            if limit is not None and prompt + new > limit
        }
        if reasons:
            raise RequestsTooLong(reasons)

    def _rescored(
        self, requests: Sequence[GenerateRequest], sampled: Sequence[tuple[tuple[int, ...], tuple[float, ...]]]
    ) -> dict[int, tuple[float, ...]]:
        """The scorer's log-probs by the index of the request, where they are wanted."""
        wanted = [index for index, request in enumerate(requests) if request.log_probs]
        scores = self._scorer.score(
            [ScoreRequest(prompt_ids=requests[index].prompt_ids, token_ids=sampled[index][0]) for index in wanted]
        )
        self.rescored_tokens += sum(map(len, scores))
        return dict(zip(wanted, scores, strict=True))

    def _compared(
        self,
        log_probs: Mapping[int, tuple[float, ...]],
        sampled: Sequence[tuple[tuple[int, ...], tuple[float, ...]]],
    ) -> dict[int, tuple[float, ...]]:
        """Importance weights by the index of the request; {} if there are to be none. Counts the mismatch.

        Raises:
            EngineUnusable: it is too large.
        """
        weights: dict[int, tuple[float, ...]] = {}
        cap, before = self.importance_cap, (self.mismatch.tokens, self.mismatch.difference)
        for index, values in log_probs.items():
            theirs = sampled[index][1]
            if cap is not None:
                own_T, theirs_T = (torch.tensor(stream, dtype=torch.float64) for stream in (values, theirs))
                weights[index] = tuple(truncated_importance_weights(own_T, theirs_T, cap).tolist())
            self.mismatch.add(values, theirs, weights.get(index, ()), math.inf if cap is None else cap)
        tokens, difference = self.mismatch.tokens - before[0], self.mismatch.difference - before[1]
        if tokens >= CHECKED_TOKENS and difference > self._max_difference * tokens:
            raise EngineUnusable(
                f"vLLM's log-probs differ from the policy's by {difference / tokens:.3g} nats a token in the mean, "
                f"engine.max_difference is {self._max_difference:g}: it does not sample from the policy that is "
                f"trained (policy version {self.policy_version})"
            )
        return weights
