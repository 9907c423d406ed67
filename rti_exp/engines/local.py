"""The policy in this process: a transformers causal language model with keys and values kept over calls.

What makes it fast for many short turns: one decode batch for all requests; a prompt asked for many times is
prefilled once; a prompt that extends what was seen before (the next turn of an episode, a role's question after a
history, a correction that is scored and then continued) is prefilled from there on; rows that are done leave the
batch. The same calls in the same order give the same bits; in another batch or with other cached prefixes the
same request gets the same draw, and log-probs that differ by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from rti_exp.engines.base import GenerateRequest, RequestsTooLong, ScoreRequest
from rti_exp.engines.casting import linear_weights_cast
from rti_exp.engines.decoding import DecodeBatch
from rti_exp.engines.forward import SlotForward, Span
from rti_exp.engines.pool import SlotPool
from rti_exp.types import Completion


class LocalEngine:
    """Generates and scores with `model`, which may be trained meanwhile: call `sync` after each change of weights.

    The model's `generation_config` is not read. Dropout is off during a call, and each module's train or eval
    mode is as before afterwards.

    Args:
        model: a transformers causal language model with full attention, "sdpa" or "eager".
        pad_id: an id to fill up with; which one does not matter to any result.
        max_batch: requests decoded or scored together; more are done in several batches.
        cache_rows: sequences whose keys and values are kept. The cache takes max(cache_rows, 2 * batch) times the
            longest sequence tokens, each 2 * layers * key/value heads * head width values.
        prefill_tokens: padded tokens of one prefill or scoring pass.

    Raises:
        ValueError: the model's attention cannot be run with rows of different lengths.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        pad_id: int = 0,
        max_batch: int = 256,
        cache_rows: int = 256,
        prefill_tokens: int = 4096,
    ) -> None:
        self.model = model
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.prefilled_tokens = 0
        """Tokens of prompts and scored texts whose keys and values were computed, rather than found."""
        self._forward = SlotForward(model, pad_id=pad_id)
        self._max_batch = max_batch
        self._cache_rows = cache_rows
        self._prefill_tokens = prefill_tokens
        self._pool = self._new_pool()
        self._pool_arithmetic = self._arithmetic()
        if model.device.type == "cpu":
            with self._evaluating():  # on the weights of now: a run that is resumed decides as the unbroken one did
                self._forward.prove()

    def _new_pool(self) -> SlotPool:
        return SlotPool(layers=self.model.config.num_hidden_layers, cache_rows=self._cache_rows)

    def sync(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self._pool.clear()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions in the order of `requests`.

        Raises:
            ValueError: an empty prompt, or no token to generate.
            RequestsTooLong: more tokens than the model has positions.
            FloatingPointError: the model gives log-probs that are not finite.
        """
        self._check_lengths([(len(request.prompt_ids), request.sampling.max_tokens) for request in requests])
        completions: list[Completion] = []
        with self._evaluating():
            for start in range(0, len(requests), self._max_batch):
                completions += self._generate(requests[start : start + self._max_batch])
        self.generated_tokens += sum(len(completion.token_ids) for completion in completions)
        return completions

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[float, ...]]:
        """Log-probs at temperature 1 in fp32, in the order of `requests`; equal requests are computed once.

        Raises:
            ValueError: an empty prompt.
            RequestsTooLong: more tokens than the model has positions.
            FloatingPointError: the model gives log-probs that are not finite.
        """
        self._check_lengths([(len(request.prompt_ids), max(len(request.token_ids), 1)) for request in requests])
        different = dict.fromkeys((request.prompt_ids, request.token_ids) for request in requests if request.token_ids)
        pairs = sorted(different, key=lambda pair: len(pair[0]) + len(pair[1]))
        scores: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, ...]] = {}
        with self._evaluating():
            for start in range(0, len(pairs), self._max_batch):
                chunk = pairs[start : start + self._max_batch]
                scores.update(zip(chunk, self._score(chunk), strict=True))
        self.scored_tokens += sum(len(request.token_ids) for request in requests)
        return [scores.get((request.prompt_ids, request.token_ids), ()) for request in requests]

    def _check_lengths(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Of (tokens of the prompt, new tokens) for each request."""
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
            raise RequestsTooLong(reasons)

    def _arithmetic(self) -> tuple[torch.device, torch.dtype, torch.dtype | None]:
        """What keys and values are computed on and in: device, dtype of the weights, dtype of autocast if it is on."""
        device = self._forward.device
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        return device, self.model.dtype, autocast

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        arithmetic = self._arithmetic()
        if arithmetic != self._pool_arithmetic:
            self._pool, self._pool_arithmetic = self._new_pool(), arithmetic
        self._forward.renew()
        training = [module for module in self.model.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.inference_mode(), linear_weights_cast(self.model, arithmetic[2]):
                yield
        except BaseException:
            self._pool = self._new_pool()  # rows may be half written
            raise
        finally:
            for module in training:
                module.training = True

    def _generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        askers: dict[tuple[int, ...], list[int]] = {}
        for index, request in enumerate(requests):
            askers.setdefault(request.prompt_ids, []).append(index)
        prompts = list(askers)
        # The last token of a prompt is fed by the first decode step, which needs its logits.
        ends = [len(prompt) - 1 for prompt in prompts]
        room = max(len(request.prompt_ids) + request.sampling.max_tokens for request in requests)
        seats = self._pool.seat(prompts, ends, [len(indices) - 1 for indices in askers.values()], room)
        self._feed(
            [
                Span(row=seat.row, ids=prompt, start=seat.shared, end=end)
                for prompt, seat, end in zip(prompts, seats, ends, strict=True)
            ]
        )
        self._pool.copy_to_followers(seats, ends)
        asker_of_slot: dict[int, int] = {}
        for seat, prompt in zip(seats, prompts, strict=True):
            asker_of_slot.update(zip((row.slot for row in (seat.row, *seat.copies)), askers[prompt], strict=True))
        order = [asker_of_slot[slot] for slot in range(len(requests))]
        batch = DecodeBatch(self._forward, self._pool, [requests[index] for index in order])
        completions: dict[int, Completion] = {}
        for index, row, (token_ids, log_probs) in zip(order, batch.rows, batch.run(), strict=True):
            request = requests[index]
            # The last token was drawn but never fed: its keys and values are not there.
            self._pool.index.store(row, request.prompt_ids + token_ids[:-1])
            completions[index] = Completion(
                token_ids=token_ids,
                log_probs=log_probs,
                stop_reason="stop" if token_ids[-1] in request.sampling.stop_ids else "length",
                policy_version=self.policy_version,
            )
        return [completions[index] for index in range(len(requests))]

    def _score(self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[tuple[float, ...]]:
        fed = [prompt_ids + token_ids[:-1] for prompt_ids, token_ids in pairs]
        firsts = [len(prompt_ids) - 1 for prompt_ids, _ in pairs]
        seats = self._pool.seat(fed, firsts, [0] * len(fed), max(len(ids) for ids in fed))
        log_probs = self._feed(
            [
                Span(row=seat.row, ids=ids, start=seat.shared, end=len(ids), first=first, targets=token_ids)
                for seat, ids, first, (_, token_ids) in zip(seats, fed, firsts, pairs, strict=True)
            ]
        )
        for seat, ids in zip(seats, fed, strict=True):
            self._pool.index.store(seat.row, ids)
        if not all(math.isfinite(value) for values in log_probs for value in values):
            raise FloatingPointError("the model gives log-probs that are not finite")
        return log_probs

    def _feed(self, spans: Sequence[Span]) -> list[tuple[float, ...]]:
        self.prefilled_tokens += sum(span.end - span.start for span in spans)
        return self._forward.feed(self._pool.cache, spans, max_tokens=self._prefill_tokens)
