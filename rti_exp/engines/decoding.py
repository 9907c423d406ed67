"""The decode loop: one batch of rows, a token each at every step, rows that are done leave it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.pool import SlotPool
from rti_exp.engines.prefixes import Row
from rti_exp.engines.sampling import Sampler

_COMPACT_AT = 7 / 8
"""The batch is closed up once at most this share of its rows still runs."""


class Forward(Protocol):
    """A way to run the model: over keys and values that it laid out itself."""

    @property
    def device(self) -> torch.device: ...
    def next_logits(
        self, cache: Any, tokens_B: Tensor, slots_B: Tensor, positions_B: Tensor, visible: int
    ) -> Tensor: ...


class DecodeBatch:
    """`requests[i]` decodes in `rows[i]`, which holds all of its prompt but the last token.

    Rows that are done go on writing to the place after their last stored token until they leave the batch; that
    place is overwritten by whatever continues them.

    Args:
        rows: in the order of their slots; the first ones where the cache wants it.
    """

    def __init__(
        self, forward: Forward, pool: SlotPool, rows: Sequence[Row], requests: Sequence[GenerateRequest]
    ) -> None:
        device = forward.device
        samplings = [request.sampling for request in requests]
        steps = max(sampling.max_tokens for sampling in samplings)
        self._forward = forward
        self._pool = pool
        self._rows = list(rows)
        self._slots_B = torch.tensor([row.slot for row in rows], device=device)
        self._sampler = Sampler(samplings, [request.seed for request in requests], device)
        self._stop_ids = [sampling.stop_ids for sampling in samplings]
        self._limits_B = torch.tensor([sampling.max_tokens for sampling in samplings], device=device)
        self._members_B = torch.arange(len(requests), device=device)
        self._tokens_B = torch.tensor([request.prompt_ids[-1] for request in requests], device=device)
        self._positions_B = torch.tensor([len(request.prompt_ids) - 1 for request in requests], device=device)
        self._running_B = torch.ones(len(requests), dtype=torch.bool, device=device)
        self._ids_TB = torch.zeros((steps, len(requests)), dtype=torch.long, device=device)
        self._log_probs_TB = torch.zeros((steps, len(requests)), dtype=torch.float32, device=device)
        self._counts_B = torch.zeros(len(requests), dtype=torch.long, device=device)
        self._visible = max(len(request.prompt_ids) for request in requests)

    def run(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Ids and log-probs of each request, its stop id included.

        Raises:
            FloatingPointError: a log-prob is not finite.
        """
        step = 0
        while True:
            logits_BV = self._forward.next_logits(
                self._pool.cache, self._tokens_B, self._slots_B, self._positions_B, self._visible
            )
            ids_B, log_probs_B = self._sampler(logits_BV, step, self._members_B)
            if step == 0:
                self._prepare_stops(logits_BV.shape[1])
            self._ids_TB[step].scatter_(0, self._members_B, ids_B)
            self._log_probs_TB[step].scatter_(0, self._members_B, log_probs_B)
            step += 1
            self._counts_B.scatter_add_(0, self._members_B, self._running_B.long())
            # Before the rows that are done now are marked: their last place must move past what is stored.
            self._positions_B = self._positions_B + self._running_B
            done_B = self._stop_KV[self._stop_set_B, ids_B] | (self._limits_B <= step)
            self._running_B = self._running_B & ~done_B
            running = int(self._running_B.sum())
            if running == 0:
                return results(self._ids_TB.cpu().numpy(), self._log_probs_TB.cpu().numpy(), self._counts_B.tolist())
            self._tokens_B = ids_B
            self._visible += 1
            if running <= _COMPACT_AT * len(ids_B):
                self._close_up(running)

    def _prepare_stops(self, vocabulary: int) -> None:
        stops_KV, sets = stop_sets(self._stop_ids, vocabulary)
        self._stop_KV = torch.from_numpy(stops_KV).to(self._tokens_B.device)
        self._stop_set_B = torch.tensor(sets, device=self._tokens_B.device)

    def _close_up(self, running: int) -> None:
        """Rows that are done leave; where the first slots are wanted, running rows from the end take their places."""
        is_running = self._running_B.cpu().numpy()
        if self._pool.cache.in_front:
            order = self._swapped_forward(is_running, running)
        else:
            order = np.flatnonzero(is_running)
            self._rows = [self._rows[i] for i in order.tolist()]
            self._slots_B = self._slots_B[torch.from_numpy(order).to(self._tokens_B.device)]
        order_B = torch.from_numpy(order).to(self._tokens_B.device)
        self._members_B = self._members_B[order_B]
        self._tokens_B = self._tokens_B[order_B]
        self._positions_B = self._positions_B[order_B]
        self._running_B = self._running_B[order_B]
        self._limits_B = self._limits_B[order_B]
        self._stop_set_B = self._stop_set_B[order_B]
        self._visible = int(self._positions_B.max()) + 1

    def _swapped_forward(self, is_running: np.ndarray, running: int) -> np.ndarray:
        order = np.arange(len(is_running))
        holes = np.flatnonzero(~is_running[:running])
        movers = running + np.flatnonzero(is_running[running:])
        order[holes], order[movers] = movers, holes
        self._pool.swap(
            [self._rows[i] for i in holes.tolist()], [self._rows[i] for i in movers.tolist()], self._visible
        )
        self._rows = [self._rows[i] for i in order[:running].tolist()]
        self._slots_B = self._slots_B[:running]
        return order[:running]


def stop_sets(stop_ids: Sequence[tuple[int, ...]], vocabulary: int) -> tuple[np.ndarray, list[int]]:
    """The different sets of stop ids, [K, V] of bool, and the number of each row's."""
    sets = {ids: number for number, ids in enumerate(dict.fromkeys(stop_ids))}
    stops_KV = np.zeros((len(sets), vocabulary), dtype=bool)
    for ids, number in sets.items():
        stops_KV[number, [stop_id for stop_id in ids if 0 <= stop_id < vocabulary]] = True
    return stops_KV, [sets[ids] for ids in stop_ids]


def results(
    ids_TB: np.ndarray, log_probs_TB: np.ndarray, counts: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Ids and log-probs of each row, as many as it has.

    Raises:
        FloatingPointError: a log-prob is not finite.
    """
    rows = zip(ids_TB.T.tolist(), log_probs_TB.T.tolist(), counts, strict=True)
    found = [(tuple(ids[:count]), tuple(log_probs[:count])) for ids, log_probs, count in rows]
    if not all(math.isfinite(value) for _, log_probs in found for value in log_probs):
        raise FloatingPointError("the model gives log-probs that are not finite")
    return found
