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

from rti_exp.compiled_qwen3.architecture import build_of
from rti_exp.compiled_qwen3.decode_loop import FlatDecodeBatch, can_advance, flat_forward
from rti_exp.compiled_qwen3.decoder import FlatForward, in_flat_arithmetic
from rti_exp.engines.base import GenerateRequest, RequestsTooLong, ScoreRequest
from rti_exp.engines.casting import linear_weights_cast
from rti_exp.engines.decoding import DecodeBatch
from rti_exp.engines.forward import SlotForward
from rti_exp.engines.pool import SlotPool
from rti_exp.engines.prefixes import Row
from rti_exp.engines.spans import Span
from rti_exp.types import Completion


class LocalEngine:
    """Generates and scores with `model`, which may be trained meanwhile: call `sync` after each change of weights.

    The model's `generation_config` is not read. Dropout is off during a call, and each module's train or eval
    mode is as before afterwards. One thread at a time may call it.

    Args:
        model: a transformers causal language model with full attention, "sdpa" or "eager".
        pad_id: an id to fill up with; which one does not matter to any result.
        max_batch: requests decoded or scored together; more are done in several batches.
        cache_rows: sequences whose keys and values are kept. The cache takes max(cache_rows, 2 * batch) times the
            longest sequence tokens, each 2 * layers * key/value heads * head width values.
        prefill_tokens: tokens of one prefill or scoring pass, padding included.
        compiled: take the compiled steps (`rti_exp.compiled_qwen3.decoder`) where they are for this model and machine.

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
        compiled: bool = True,
    ) -> None:
        self.model = model
        self.policy_version = 0
        self.generated_tokens = 0
        self.scored_tokens = 0
        self.prefilled_tokens = 0
        """Tokens of prompts and scored texts whose keys and values were computed, rather than found."""
        self._pad_id = pad_id
        self._max_batch = max_batch
        self._cache_rows = cache_rows
        self._prefill_tokens = prefill_tokens
        self._slots = SlotForward(model, pad_id=pad_id)
        self._compiled = compiled
        self._flat: FlatForward | None = None
        self._tried_flat = False
        self._weights_changed = False
        self._build: tuple[object, ...] | None = None
        self._forward: SlotForward | FlatForward = self._slots
        self._pool = self._new_pool()
        self._pool_arithmetic: tuple[object, ...] = ()
        if model.device.type == "cpu":
            with self._evaluating():  # on the weights of now: a run that is resumed decides as the unbroken one did
                self._slots.prove()

    def _new_pool(self) -> SlotPool:
        return SlotPool(self._forward.new_cache(), cache_rows=self._cache_rows)

    def sync(self, policy_version: int) -> None:
        self.policy_version = policy_version
        self._pool.clear()
        self._weights_changed = True

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

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modules = list(self.model.modules())
        training = [module for module in modules if module.training]
        for module in training:
            module.training = False
        place = self._slots.device.type
        autocast = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None
        try:
            with torch.inference_mode(), linear_weights_cast(self.model, autocast):
                self._choose_forward(build_of(modules), autocast)
                yield
        except BaseException:
            self._pool = self._new_pool()  # rows may be half written
            raise
        finally:
            for module in training:
                module.training = True

    def _choose_forward(self, build: tuple[object, ...], autocast: torch.dtype | None) -> None:
        """The way for what the model is made of and computed in now; keys and values of another are forgotten."""
        if build != self._build:  # adapters, say, may have been put in since
            self._build, self._slots = build, SlotForward(self.model, pad_id=self._pad_id)
            self._flat, self._tried_flat = None, not self._compiled
        self._forward = self._flat_now() or self._slots
        arithmetic = (self._forward, self._slots.device, self.model.dtype, autocast)
        if arithmetic != self._pool_arithmetic:
            self._pool, self._pool_arithmetic = self._new_pool(), arithmetic

    def _flat_now(self) -> FlatForward | None:
        """With the weights of now; what it held of them is let go where it is not for what is computed now."""
        if not in_flat_arithmetic(self.model):
            if self._flat is not None:
                self._flat.forget()
            self._weights_changed = True
            return None
        if not self._tried_flat:
            self._flat, self._tried_flat = flat_forward(self.model), True
        elif self._flat is not None and self._weights_changed:
            self._flat.renew()
        self._weights_changed = False
        return self._flat

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
        asker_of_row: dict[Row, int] = {}
        for seat, prompt in zip(seats, prompts, strict=True):
            asker_of_row.update(zip((seat.row, *seat.copies), askers[prompt], strict=True))
        rows = sorted(asker_of_row, key=lambda row: row.slot)
        order = [asker_of_row[row] for row in rows]
        decoded = self._decoded(rows, [requests[index] for index in order])
        completions: dict[int, Completion] = {}
        for index, row, (token_ids, log_probs) in zip(order, rows, decoded, strict=True):
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

    def _decoded(
        self, rows: Sequence[Row], requests: Sequence[GenerateRequest]
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        if isinstance(self._forward, FlatForward) and can_advance(requests):
            return FlatDecodeBatch(self._forward, self._pool, rows, requests).run()
        return DecodeBatch(self._forward, self._pool, rows, requests).run()

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
