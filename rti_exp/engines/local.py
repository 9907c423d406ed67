"""The policy in this process: a transformers causal language model with keys and values kept between calls.

Many short turns are fast because all requests decode in one batch; a prompt that several requests share is prefilled
once; a prompt that extends an earlier sequence (the next turn of an episode, a role's question after a history, a
correction that is scored and then continued) is prefilled from there on; finished rows leave the batch. The same calls
in the same order give the same bits. In another batch, or with other cached prefixes, a request gets the same sampled
tokens, and log-probs that differ by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import GenerateRequest, RequestsFailed, ScoreRequest
from rti_exp.engines.compiled_forward import CompiledForward
from rti_exp.engines.forward import Forward, Span
from rti_exp.engines.prefix_index import Row
from rti_exp.engines.slot_pool import SlotPool
from rti_exp.engines.transformers_forward import TransformersForward
from rti_exp.models.fast_path import fast_path
from rti_exp.types import Completion


class LocalEngine:
    """Generates and scores with `model`, which may be trained between calls: call `sync` after each change of weights.

    The model's `generation_config` is not read. Dropout is off during a call, and each module's train or eval mode is
    restored afterwards. Only one thread at a time may call it.

    Args:
        model: a transformers causal language model with full attention, "sdpa" or "eager".
        pad_id: a token id for padding; it affects no result.
        max_batch: the most requests that are decoded or scored together.
        cache_rows: sequences whose keys and values are kept. The cache takes max(cache_rows, 2 * batch) times the
            longest sequence tokens, each 2 * layers * key/value heads * head width values.
        prefill_tokens: the most tokens of a prefill or scoring pass, padding included.
        compiled: use the fast path (`rti_exp.models.fast_path`) if there is one for this model and machine.

    Attributes:
        prefilled_tokens: tokens of prompts and scored texts that were computed rather than taken from the cache.

    Raises:
        ValueError: the model's attention cannot be run with rows of different lengths.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_id: int = 0,
        max_batch: int,
        cache_rows: int,
        prefill_tokens: int,
        compiled: bool = True,
    ) -> None:
        self.model = model
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.prefilled_tokens = 0
        self._max_batch = max_batch
        self._cache_rows = cache_rows
        self._prefill_tokens = prefill_tokens
        self._plain = TransformersForward(model, pad_id=pad_id)
        with _eval_mode(model):
            path = fast_path(model) if compiled else None
        self._compiled = None if path is None else CompiledForward(path, model.config.vocab_size)
        self._forward: Forward = self._plain
        self._pool = self._new_pool()
        self._pool_arithmetic: tuple[object, ...] = ()

    def _new_pool(self) -> SlotPool:
        return SlotPool(self._forward.new_cache(), cache_rows=self._cache_rows)

    def sync(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self._pool.clear()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            ValueError: an empty prompt, or no token to generate.
            RequestsFailed: more tokens than the model has positions.
            FloatingPointError: a log-prob is not finite.
        """
        self._check_lengths([(len(request.prompt_ids), request.sampling.max_tokens) for request in requests])
        completions: list[Completion] = []
        with self._evaluating():
            for start in range(0, len(requests), self._max_batch):
                completions += self._generate(requests[start : start + self._max_batch])
        self.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probs in fp32, in the order of `requests`; equal requests are computed once.

        Raises:
            ValueError: an empty prompt.
            RequestsFailed: more tokens than the model has positions.
            FloatingPointError: a log-prob is not finite.
        """
        self._check_lengths([(len(request.prompt_ids), max(len(request.token_ids), 1)) for request in requests])
        distinct = dict.fromkeys(request for request in requests if request.token_ids)
        pending = sorted(distinct, key=lambda request: len(request.prompt_ids) + len(request.token_ids))
        scores: dict[ScoreRequest, tuple[float, ...]] = {}
        with self._evaluating():
            for start in range(0, len(pending), self._max_batch):
                chunk = pending[start : start + self._max_batch]
                scores.update(zip(chunk, self._score(chunk), strict=True))
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        return [scores.get(request, ()) for request in requests]

    def _check_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Checks (tokens of the prompt, new tokens) of each request."""
        if any(prompt < 1 or new < 1 for prompt, new in lengths):
            raise ValueError("a request needs a prompt of at least one token, and max_tokens of at least 1")
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is None:
            return
        reasons = {
            index: f"{prompt} + {new} tokens exceed the model's {limit} positions"
            for index, (prompt, new) in enumerate(lengths)
            if prompt + new > limit
        }
        if reasons:
            raise RequestsFailed.too_long(reasons)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        place = self._plain.device.type
        autocast = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None
        try:
            with _eval_mode(self.model), _without_gradient(place, autocast):
                self._choose_forward(autocast)
                yield
        except BaseException:
            self._pool = self._new_pool()  # rows may be half written
            raise

    def _choose_forward(self, autocast: torch.dtype | None) -> None:
        """Takes the fast path where it applies now; keys and values of another arithmetic are dropped."""
        self._forward = self._plain
        if self._compiled is not None and self._compiled.applies():
            self._forward = self._compiled
        modules = tuple(map(id, self.model.modules()))  # adapters, for example, may have been added
        arithmetic = (self._forward, self._plain.device, self.model.dtype, autocast, modules)
        if arithmetic != self._pool_arithmetic:
            self._pool, self._pool_arithmetic = self._new_pool(), arithmetic

    def _generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        indices: dict[tuple[int, ...], list[int]] = {}
        for index, request in enumerate(requests):
            indices.setdefault(request.prompt_ids, []).append(index)
        prompts = list(indices)
        # The last token of a prompt is fed by the first decode step, which needs its logits.
        ends = [len(prompt) - 1 for prompt in prompts]
        room = max(len(request.prompt_ids) + request.sampling.max_tokens for request in requests)
        seats = self._pool.seat(prompts, ends, [len(same) - 1 for same in indices.values()], room)
        self._feed(
            [
                Span(row=seat.row, ids=prompt, start=seat.shared, end=end)
                for prompt, seat, end in zip(prompts, seats, ends, strict=True)
            ]
        )
        self._pool.copy_to_followers(seats, ends)
        index_of_row: dict[Row, int] = {}
        for seat, prompt in zip(seats, prompts, strict=True):
            index_of_row.update(zip((seat.row, *seat.copies), indices[prompt], strict=True))
        rows = sorted(index_of_row, key=lambda row: row.slot)
        order = [index_of_row[row] for row in rows]
        decoded = self._forward.decode(self._pool.cache, rows, [requests[index] for index in order])
        completions: dict[int, Completion] = {}
        for index, row, (token_ids, log_probs) in zip(order, rows, decoded, strict=True):
            request = requests[index]
            # The last token was sampled but never fed: its keys and values are not stored.
            self._pool.index.store(row, request.prompt_ids + token_ids[:-1])
            completions[index] = Completion(
                token_ids=token_ids,
                log_probs=log_probs,
                stop_reason="stop" if token_ids[-1] in request.sampling.stop_ids else "length",
                policy_version=self.policy_version,
            )
        return [completions[index] for index in range(len(requests))]

    def _score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        fed = [request.prompt_ids + request.token_ids[:-1] for request in requests]
        firsts = [len(request.prompt_ids) - 1 for request in requests]
        seats = self._pool.seat(fed, firsts, [0] * len(fed), max(len(ids) for ids in fed))
        log_probs = self._feed(
            [
                Span(
                    row=seat.row,
                    ids=ids,
                    start=seat.shared,
                    end=len(ids),
                    first=first,
                    targets=request.token_ids,
                    temperature=request.temperature,
                )
                for seat, ids, first, request in zip(seats, fed, firsts, requests, strict=True)
            ]
        )
        for seat, ids in zip(seats, fed, strict=True):
            self._pool.index.store(seat.row, ids)
        if not all(math.isfinite(value) for values in log_probs for value in values):
            raise FloatingPointError("the model's log-probs are not finite")
        return log_probs

    def _feed(self, spans: Sequence[Span]) -> list[tuple[float, ...]]:
        self.prefilled_tokens += sum(span.end - span.start for span in spans)
        return self._forward.feed(self._pool.cache, spans, max_tokens=self._prefill_tokens)


@contextmanager
def _eval_mode(model: PreTrainedModel) -> Iterator[None]:
    """Eval mode of all modules; afterwards each has its own mode again."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _without_gradient(place: str, autocast: torch.dtype | None) -> Iterator[None]:
    """Inference mode. Under autocast, no_grad with autocast's cache, so that a weight is cast once in a call.

    Lightning switches that cache off, and it does not work in inference mode, nor for frozen weights.
    """
    if autocast is None:
        with torch.inference_mode():
            yield
        return
    try:
        with torch.no_grad(), torch.autocast(place, dtype=autocast, cache_enabled=True):
            yield
    finally:
        torch.clear_autocast_cache()
