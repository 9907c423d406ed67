"""The entry: which models get compiled code, after a check that it agrees with the model's own forward pass."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rti_exp.compiled_qwen3.architecture import computes_in_float32_on_one_thread, is_plain_qwen3
from rti_exp.compiled_qwen3.numba_compiler import is_available
from rti_exp.compiled_qwen3.packing import pack

if TYPE_CHECKING:
    from rti_exp.compiled_qwen3.packed_decoder import PackedDecoder
    from rti_exp.compiled_qwen3.rollout_decoder import RolloutDecoder

LARGEST_WEIGHTS = 2**28
"""Bytes. The update copies most weights for the time of a micro-batch, and large matmuls gain nothing."""
LARGEST_VOCABULARY = 2**14
"""The update computes the logits of all trained tokens of a micro-batch at once."""
ROUNDING = 1e-4
"""Hidden states may differ from the model's by this part of the largest."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPath:
    """See `rti_exp.models.fast_path.FastPath`."""

    model: PreTrainedModel
    rollout: RolloutDecoder
    update: PackedDecoder

    def applies(self) -> bool:
        return computes_in_float32_on_one_thread(self.model) and is_plain_qwen3(self.model)


def fast_path(model: PreTrainedModel) -> FastPath | None:
    """Compiled code for `model`, which must be in eval mode; None where transformers has to compute everything.

    The check runs with the weights of now and compiles every kernel. A failure (a Numba that does not fit NumPy, a
    full disk, damaged stored code, a torch without the oneDNN operators) is logged once.
    """
    if not _suits(model):
        return None
    try:
        if not is_available():
            return None
        from rti_exp.compiled_qwen3.packed_decoder import PackedDecoder
        from rti_exp.compiled_qwen3.rollout_decoder import RolloutDecoder

        path = FastPath(model=model, rollout=RolloutDecoder(model), update=PackedDecoder(model))
        return path if _agrees(path) else None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        _warn(f"compiled code does not work here ({reason}): transformers' own code runs instead, which is slower")
        return None


@functools.cache
def _warn(message: str) -> None:
    log.warning(message)


def _suits(model: PreTrainedModel) -> bool:
    if not (computes_in_float32_on_one_thread(model) and is_plain_qwen3(model)):
        return False
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return size <= LARGEST_WEIGHTS and model.config.vocab_size <= LARGEST_VOCABULARY


def _agrees(path: FastPath) -> bool:
    """Whether both decoders give the model's hidden states, on rows of different lengths with a common beginning."""
    vocabulary = path.model.config.vocab_size
    rows = [
        [(7 * place + number * (place > 5)) % vocabulary for place in range(130 - 37 * number)] for number in range(4)
    ]
    packing = pack(rows)
    with torch.inference_mode():
        by_rollout = _rollout_states(path.rollout, rows)
        for number, row in enumerate(rows):
            expected_TD = path.model.model(input_ids=torch.tensor([row]), use_cache=False).last_hidden_state[0]
            by_update_TD = path.update.states(packing, packing.tokens_BT[number, : len(row)])
            allowed = ROUNDING * expected_TD.abs().max()
            for states_TD in (by_update_TD, by_rollout[number]):
                if not (states_TD - expected_TD).abs().max() <= allowed:
                    return False
    _compile_the_rest(path)
    return True


def _rollout_states(decoder: RolloutDecoder, rows: list[list[int]]) -> list[Tensor]:
    """Hidden states of each row: of its first tokens in one pass with the other rows', of its last token in another."""
    cache = decoder.new_cache()
    cache.make_room(len(rows), max(map(len, rows)), most_slots=len(rows))
    parts: list[tuple[Tensor, ...]] = []
    for start, end in ((0, -1), (-1, None)):
        positions = [torch.arange(len(row))[start:end] for row in rows]
        lengths = [len(part) for part in positions]
        tokens_N = torch.cat([torch.tensor(row)[part] for row, part in zip(rows, positions, strict=True)])
        slots_N = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
        states_ND = decoder.states(cache, tokens_N, slots_N, torch.cat(positions), torch.arange(len(tokens_N)))
        parts.append(states_ND.split(lengths))
    return [torch.cat(row_parts) for row_parts in zip(*parts, strict=True)]


def _compile_the_rest(path: FastPath) -> None:
    """Runs what the comparison of states did not: copying, decoding, and the backward pass."""
    cache, one = path.rollout.new_cache(), np.ones(1, np.int64)
    cache.make_room(2, 2, most_slots=2)
    cache.copy([0], [1], 1)
    stops_MV = np.zeros((1, path.model.config.vocab_size), dtype=bool)
    numbers = np.ones(1, np.float32), np.zeros((1, 1), np.float32)
    with torch.inference_mode():
        path.rollout.decode(
            cache, one, one, 0 * one, temperatures_M=numbers[0], uniforms_TM=numbers[1], limits_M=one, stops_MV=stops_MV
        )
    trained = [weight for weight in path.model.parameters() if weight.requires_grad]
    if trained:
        place = torch.zeros(1, dtype=torch.long)
        with torch.enable_grad():
            log_probs_M, _ = path.update.log_probs([[0, 1]], place, place, place)
            torch.autograd.grad(log_probs_M.sum(), trained, allow_unused=True)
