"""The decode loop: one batch of rows, a token each at every step, rows that are done leave it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.forward import SlotForward
from rti_exp.engines.pool import SlotPool
from rti_exp.engines.sampling import Sampler

_COMPACT_AT = 7 / 8
"""The batch is closed up once at most this share of its rows still runs."""


class DecodeBatch:
    """`requests[i]` decodes in slot i, which holds all of its prompt but the last token.

    Rows that are done go on writing to the place after their last stored token until they leave the batch; that
    place is overwritten by whatever continues them.
    """

    def __init__(self, forward: SlotForward, pool: SlotPool, requests: Sequence[GenerateRequest]) -> None:
        device = forward.device
        samplings = [request.sampling for request in requests]
        steps = max(sampling.max_tokens for sampling in samplings)
        self._forward = forward
        self._pool = pool
        self._rows = pool.index.rows[: len(requests)]
        self.rows = list(self._rows)
        """The row of each request, wherever it moves."""
        self._sampler = Sampler(samplings, [request.seed for request in requests], device)
        self._stop_ids = [sampling.stop_ids for sampling in samplings]
        self._limits_B = torch.tensor([sampling.max_tokens for sampling in samplings], device=device)
        self._members_B = torch.arange(len(requests), device=device)
        self._tokens_B = torch.tensor([request.prompt_ids[-1] for request in requests], device=device)
        self._positions_B = torch.tensor([len(request.prompt_ids) - 1 for request in requests], device=device)
        self._running_B = torch.ones(len(requests), dtype=torch.bool, device=device)
        self._ids_TB = torch.zeros((steps, len(requests)), dtype=torch.long, device=device)
        self._log_probs_TB = torch.zeros((steps, len(requests)), device=device)
        self._counts_B = torch.zeros(len(requests), dtype=torch.long, device=device)
        self._first_places_B = torch.arange(len(requests), device=device) * pool.cache.length
        self._columns_K = torch.arange(pool.cache.length, device=device)
        self._visible = max(len(request.prompt_ids) for request in requests)

    def run(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Ids and log-probs of each request, its stop id included.

        Raises:
            FloatingPointError: a log-prob is not finite.
        """
        step = 0
        while True:
            logits_BV = self._logits()
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
                return self._results()
            self._tokens_B = ids_B
            self._visible += 1
            if running <= _COMPACT_AT * len(ids_B):
                self._close_up(running)

    def _logits(self) -> Tensor:
        rows = len(self._tokens_B)
        self._pool.cache.point(self._first_places_B[:rows] + self._positions_B, self._visible)
        shown_B1K = (self._columns_K[: self._visible] <= self._positions_B[:, None])[:, None]
        return self._forward(self._pool.cache, self._tokens_B[:, None], self._positions_B[:, None], shown_B1K)

    def _prepare_stops(self, vocabulary: int) -> None:
        sets = {stop_ids: number for number, stop_ids in enumerate(dict.fromkeys(self._stop_ids))}
        stops = torch.zeros((len(sets), vocabulary), dtype=torch.bool)
        for stop_ids, number in sets.items():
            stops[number, [stop_id for stop_id in stop_ids if 0 <= stop_id < vocabulary]] = True
        device = self._tokens_B.device
        self._stop_KV = stops.to(device)
        self._stop_set_B = torch.tensor([sets[stop_ids] for stop_ids in self._stop_ids], device=device)

    def _close_up(self, running: int) -> None:
        """Running rows from the end of the batch change places with rows that are done."""
        is_running = self._running_B.cpu().numpy()
        order = np.arange(len(is_running))
        holes = np.flatnonzero(~is_running[:running])
        movers = running + np.flatnonzero(is_running[running:])
        order[holes], order[movers] = movers, holes
        self._pool.swap(
            [self._rows[i] for i in holes.tolist()], [self._rows[i] for i in movers.tolist()], self._visible
        )
        self._rows = [self._rows[i] for i in order[:running].tolist()]
        order_B = torch.from_numpy(order[:running]).to(self._tokens_B.device)
        self._members_B = self._members_B[order_B]
        self._tokens_B = self._tokens_B[order_B]
        self._positions_B = self._positions_B[order_B]
        self._running_B = self._running_B[order_B]
        self._limits_B = self._limits_B[order_B]
        self._stop_set_B = self._stop_set_B[order_B]
        self._visible = int(self._positions_B.max()) + 1

    def _results(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        counts = self._counts_B.tolist()
        ids, log_probs = self._ids_TB.T.tolist(), self._log_probs_TB.T.tolist()
        results = [
            (tuple(row_ids[:count]), tuple(row_log_probs[:count]))
            for row_ids, row_log_probs, count in zip(ids, log_probs, counts, strict=True)
        ]
        if not all(np.isfinite(row_log_probs).all() for _, row_log_probs in results):
            raise FloatingPointError("the model gives log-probs that are not finite")
        return results
