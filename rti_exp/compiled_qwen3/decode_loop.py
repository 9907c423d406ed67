"""The compiled decode loop: everything after the logits is one compiled step for all rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from rti_exp.compiled_qwen3.architecture import is_plain_qwen3
from rti_exp.compiled_qwen3.compilation import can_compile, falling_back
from rti_exp.compiled_qwen3.decoder import FlatForward
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.engines.decoding import results, stop_sets
from rti_exp.engines.pool import SlotPool
from rti_exp.engines.prefixes import Row
from rti_exp.engines.sampling import uniforms


def flat_forward(model: PreTrainedModel) -> FlatForward | None:
    """None without the compiler, for a model that is not just Qwen3's, or if the two differ.

    Tried out on made-up rows with the weights of now, so that all is compiled: call it in inference mode and
    `in_flat_arithmetic`.
    """
    if not can_compile() or not is_plain_qwen3(model):
        return None
    with falling_back() as works:
        found = FlatForward(model)
        works.append(found.agrees() and _draws(found))
    return found if works == [True] else None


def _draws(forward: FlatForward) -> bool:
    pool = SlotPool(forward.new_cache(), cache_rows=2)
    request = GenerateRequest(prompt_ids=(0,), sampling=Sampling(max_tokens=1), seed=0)
    (seat,) = pool.seat([request.prompt_ids], [0], [1], 2)
    pool.copy_to_followers([seat], [1])
    return len(FlatDecodeBatch(forward, pool, [seat.row], [request]).run()) == 1


def can_advance(requests: Sequence[GenerateRequest]) -> bool:
    """Whether the compiled step draws as these want it: no nucleus."""
    return all(request.sampling.top_p >= 1 for request in requests)


class FlatDecodeBatch:
    """As `rti_exp.engines.decoding.DecodeBatch`; a row leaves as soon as it is done."""

    def __init__(
        self, forward: FlatForward, pool: SlotPool, rows: Sequence[Row], requests: Sequence[GenerateRequest]
    ) -> None:
        self._forward = forward
        self._cache = pool.cache
        self._requests = requests
        self._slots_B = np.array([row.slot for row in rows])
        self._members_B = np.arange(len(requests))
        self._tokens_B = np.array([request.prompt_ids[-1] for request in requests])
        self._positions_B = np.array([len(request.prompt_ids) - 1 for request in requests])
        self._running_B = np.ones(len(requests), dtype=bool)

    def run(self) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Ids and log-probs of each request, its stop id included.

        Raises:
            FloatingPointError: a log-prob is not finite.
        """
        from rti_exp.compiled_qwen3 import decode_kernels as kernels  # needs the compiler

        samplings = [request.sampling for request in self._requests]
        limits_M = np.array([sampling.max_tokens for sampling in samplings])
        temperatures_M = np.array([sampling.temperature for sampling in samplings], np.float32)
        draws = limits_M.max() if temperatures_M.any() else 1
        uniforms_TM = uniforms([request.seed for request in self._requests], draws).T.contiguous().numpy()
        stops_KV, sets = stop_sets([sampling.stop_ids for sampling in samplings], self._forward.vocabulary)
        stop_sets_M, counts_M = np.array(sets), np.zeros(len(sets), np.int64)
        ids_TM = np.zeros((limits_M.max(), len(sets)), np.int64)
        log_probs_TM = np.zeros(ids_TM.shape, np.float32)
        scratch_V, powers_V = (
            np.empty(self._forward.vocabulary, np.float32),
            np.empty(self._forward.vocabulary, np.int32),
        )
        for step in range(len(ids_TM)):
            left = kernels.advance(
                self._logits().numpy(),
                uniforms_TM[min(step, len(uniforms_TM) - 1)],
                temperatures_M,
                self._members_B,
                stops_KV,
                stop_sets_M,
                limits_M,
                step,
                self._tokens_B,
                self._positions_B,
                self._running_B,
                counts_M,
                ids_TM[step],
                log_probs_TM[step],
                scratch_V,
                powers_V,
            )
            if not left:
                break
            if left < len(self._running_B):
                self._drop_the_done()
        return results(ids_TM, log_probs_TM, counts_M.tolist())

    def _logits(self) -> torch.Tensor:
        tokens_B, slots_B, positions_B = map(torch.from_numpy, (self._tokens_B, self._slots_B, self._positions_B))
        return self._forward.next_logits(self._cache, tokens_B, slots_B, positions_B, 0)

    def _drop_the_done(self) -> None:
        kept = self._running_B
        self._slots_B, self._members_B = self._slots_B[kept], self._members_B[kept]
        self._tokens_B, self._positions_B = self._tokens_B[kept], self._positions_B[kept]
        self._running_B = self._running_B[kept]
