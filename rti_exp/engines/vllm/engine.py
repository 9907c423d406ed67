"""Sampling with vLLM, scoring with the model that is trained.

vLLM runs in a separate process (`rti_exp.engines.vllm.worker`), in this Python environment or in another one, because
its requirements may conflict with the trainer's. It takes and returns token ids. It is sent all weights before it
samples with a new policy version, and then drops its keys and values.

The trainer's own scorer computes the log-probs of the sampled tokens again. So behaviour log-probs, gate and rho come
from one place, and the ratio of a first update is exactly 1. `mismatch` measures how far vLLM's own log-probs were
from them, and importance weights can correct for it (`importance_cap`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import EngineUnusable, GenerateRequest, RequestsFailed, ScoreRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.vllm.client import Sampled, WorkerClient, WorkerOptions
from rti_exp.engines.vllm.mismatch import Mismatch
from rti_exp.engines.vllm.process import WorkerEnded
from rti_exp.objective.importance import truncated_importance_weights
from rti_exp.types import Completion

CHECKED_TOKENS = 256
"""The mismatch of fewer tokens is too noisy to end a run."""


class VllmEngine:
    """Generates with vLLM and scores with `model`, which may be trained in between: call `sync` after each change.

    Equal seeds give equal draws, except where rounding in another batch changes a token (about one in thousands).

    Args:
        model: a transformers causal language model that vLLM supports too, on the device that trains.
        pad_id, max_batch, cache_rows, prefill_tokens: `LocalEngine`'s, for scoring; vLLM too decodes at most
            `max_batch` sequences at once.
        importance_cap: the cap of the completions' truncated importance weights (`rti_exp.objective.importance`);
            None means no weights.
        max_difference: limit of a call's mean |log pi - log pi_sampler|, in nats. Above it, sampler and policy are
            not the same model.
        worker: keyword arguments of `WorkerOptions`.

    Raises:
        ValueError: the model's attention cannot score rows of different lengths.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_id: int = 0,
        max_batch: int,
        cache_rows: int,
        prefill_tokens: int,
        max_context: int | None,
        importance_cap: float | None,
        max_difference: float,
        **worker: Any,
    ) -> None:
        self.model = model
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.mismatch = Mismatch()
        """Since it was last replaced by a new one."""
        self.importance_cap = importance_cap
        self._max_difference = max_difference
        self._scorer = LocalEngine(
            model, pad_id=pad_id, max_batch=max_batch, cache_rows=cache_rows, prefill_tokens=prefill_tokens
        )
        positions = getattr(model.config, "max_position_embeddings", None)
        self._limit = min((length for length in (max_context, positions) if length is not None), default=None)
        self._worker = WorkerClient(model, WorkerOptions(**worker), max_context=self._limit, max_batch=max_batch)

    @property
    def weight_seconds(self) -> float:
        """Seconds spent on sending weights to vLLM since construction."""
        return self._worker.weight_seconds

    def sync(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self._scorer.sync(policy_version)

    def close(self) -> None:
        """Ends vLLM's process; the next call starts another one."""
        self._worker.close()

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """See `LocalEngine.score`."""
        scores = self._scorer.score(requests)
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        return scores

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            ValueError: an empty prompt, or no token to generate.
            RequestsFailed: more tokens than `max_context` or the model's positions.
            EngineUnavailable: vLLM's process cannot be started, raised, or ended twice.
            EngineUnusable: vLLM does not sample from the policy.
            FloatingPointError: log-probs are not finite.
        """
        self._check_lengths(requests)
        if not requests:
            return []
        try:
            sampled = self._worker.generate(requests, self.policy_version)
        except WorkerEnded:
            sampled = self._worker.generate(requests, self.policy_version)  # once more, in a new process
        if not all(math.isfinite(value) for completion in sampled for value in completion.log_probs):
            raise FloatingPointError("vLLM gives log-probs that are not finite")
        self.generated_tokens += sum(len(completion.token_ids) for completion in sampled)
        log_probs = self._rescore(requests, sampled)
        weights = self._compare(log_probs, sampled)
        return [
            Completion(
                token_ids=token_ids,
                log_probs=log_probs.get(index, sampler_log_probs),
                stop_reason="stop" if token_ids[-1] in request.sampling.stop_ids else "length",
                policy_version=self.policy_version,
                importance_weights=weights.get(index, ()),
            )
            for index, (request, (token_ids, sampler_log_probs)) in enumerate(zip(requests, sampled, strict=True))
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
            raise RequestsFailed.too_long(reasons)

    def _rescore(self, requests: Sequence[GenerateRequest], sampled: Sequence[Sampled]) -> dict[int, tuple[float, ...]]:
        """The scorer's log-probs by the index of the request, for requests that use them.

        The scorer does not renormalise over a nucleus: with top_p below 1 vLLM's log-probs are used.
        """
        indices = [index for index, request in enumerate(requests) if request.log_probs and request.sampling.top_p == 1]
        scores = self._scorer.score(
            [
                ScoreRequest(
                    prompt_ids=requests[index].prompt_ids,
                    token_ids=sampled[index].token_ids,
                    temperature=requests[index].sampling.temperature or 1.0,
                )
                for index in indices
            ]
        )
        return dict(zip(indices, scores, strict=True))

    def _compare(
        self, log_probs: Mapping[int, tuple[float, ...]], sampled: Sequence[Sampled]
    ) -> dict[int, tuple[float, ...]]:
        """Adds to the mismatch; returns importance weights by the index of the request, {} without a cap.

        Raises:
            EngineUnusable: the mismatch is too large.
        """
        weights: dict[int, tuple[float, ...]] = {}
        cap, earlier_tokens, earlier_difference = self.importance_cap, self.mismatch.tokens, self.mismatch.difference
        for index, policy_log_probs in log_probs.items():
            sampler_log_probs = sampled[index].log_probs
            if cap is not None:
                policy_T = torch.tensor(policy_log_probs, dtype=torch.float64)
                sampler_T = torch.tensor(sampler_log_probs, dtype=torch.float64)
                weights[index] = tuple(truncated_importance_weights(policy_T, sampler_T, cap).tolist())
            self.mismatch.add(
                policy_log_probs, sampler_log_probs, weights.get(index, ()), math.inf if cap is None else cap
            )
        tokens = self.mismatch.tokens - earlier_tokens
        difference = self.mismatch.difference - earlier_difference
        if tokens >= CHECKED_TOKENS and difference > self._max_difference * tokens:
            raise EngineUnusable(
                f"vLLM's log-probs differ from the policy's by {difference / tokens:.3g} nats per token on average, "
                f"engine.max_difference is {self._max_difference:g}: vLLM does not sample from the trained policy "
                f"(policy version {self.policy_version})"
            )
        return weights
