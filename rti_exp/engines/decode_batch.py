"""The decode loop in torch: one batch of rows, one token each per step; finished rows leave the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rti_exp.engines.base import GenerateRequest
from rti_exp.engines.forward import Decoded, Forward
from rti_exp.engines.prefix_index import Row
from rti_exp.engines.sampling import Sampler


class DecodeBatch:
    """`requests[i]` decodes in `rows[i]`, which holds all of its prompt but the last token."""

    def __init__(self, forward: Forward, cache: Any, rows: Sequence[Row], requests: Sequence[GenerateRequest]) -> None:
        device = forward.device
        samplings = [request.sampling for request in requests]
        steps = max(sampling.max_tokens for sampling in samplings)
        self._forward = forward
        self._cache = cache
        self._sampler = Sampler(samplings, [request.seed for request in requests], device)
        self._stop_ids = [sampling.stop_ids for sampling in samplings]
        self._limits_M = torch.tensor([sampling.max_tokens for sampling in samplings], device=device)
        self._members_B = torch.arange(len(requests), device=device)
        self._slots_B = torch.tensor([row.slot for row in rows], device=device)
        self._tokens_B = torch.tensor([request.prompt_ids[-1] for request in requests], device=device)
        self._positions_B = torch.tensor([len(request.prompt_ids) - 1 for request in requests], device=device)
        self._ids_TM = torch.zeros((steps, len(requests)), dtype=torch.long, device=device)
        self._log_probs_TM = torch.zeros((steps, len(requests)), dtype=torch.float32, device=device)
        self._counts_M = torch.zeros(len(requests), dtype=torch.long, device=device)

    def run(self) -> list[Decoded]:
        """Ids and log-probs of each request, its stop id included.

        Raises:
            FloatingPointError: a log-prob is not finite.
        """
        stops_MV: torch.Tensor | None = None
        for step in range(len(self._ids_TM)):
            logits_BV = self._forward.next_logits(
                self._cache, self._tokens_B, self._slots_B, self._positions_B, int(self._positions_B.max()) + 1
            )
            if stops_MV is None:
                stops_MV = torch.from_numpy(stop_table(self._stop_ids, logits_BV.shape[1])).to(logits_BV.device)
            members_B = self._members_B
            ids_B, log_probs_B = self._sampler(logits_BV, step, members_B)
            self._ids_TM[step, members_B] = ids_B
            self._log_probs_TM[step, members_B] = log_probs_B
            self._counts_M[members_B] += 1
            running_B = ~stops_MV[members_B, ids_B] & (self._limits_M[members_B] > step + 1)
            kept_B = running_B.nonzero()[:, 0]
            if not len(kept_B):
                break
            self._members_B, self._tokens_B = members_B[kept_B], ids_B[kept_B]
            self._slots_B, self._positions_B = self._slots_B[kept_B], self._positions_B[kept_B] + 1
        return decoded(self._ids_TM.cpu().numpy(), self._log_probs_TM.cpu().numpy(), self._counts_M.tolist())


def stop_table(stop_ids: Sequence[tuple[int, ...]], vocabulary: int) -> np.ndarray:
    """[M, V] of bool: whether a token ends a request. Ids beyond the vocabulary are ignored."""
    stops_MV = np.zeros((len(stop_ids), vocabulary), dtype=bool)
    for stops_V, ids in zip(stops_MV, stop_ids, strict=True):
        stops_V[[stop_id for stop_id in ids if 0 <= stop_id < vocabulary]] = True
    return stops_MV


def decoded(ids_TM: np.ndarray, log_probs_TM: np.ndarray, counts: Sequence[int]) -> list[Decoded]:
    """Ids and log-probs of each request, cut to its count.

    Raises:
        FloatingPointError: a log-prob is not finite.
    """
    columns = zip(ids_TM.T.tolist(), log_probs_TM.T.tolist(), counts, strict=True)
    results = [(tuple(ids[:count]), tuple(log_probs[:count])) for ids, log_probs, count in columns]
    if not all(math.isfinite(value) for _, log_probs in results for value in log_probs):
        raise FloatingPointError("the model's log-probs are not finite")
    return results
