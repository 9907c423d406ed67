"""Samples -> mini-batches -> micro-batches: which tokens share an optimizer step, and which a forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rti_exp.randomness import derive_seed
from rti_exp.types import Author, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Right-padded [B, T] streams. The value at t belongs to the token at t, which the prefix up to t - 1 predicts.

    A row ends with its last trained token, since later tokens cannot change the loss. Padding has mask False, log-prob
    and advantage 0, weight 1. No attention mask is needed: in a causal model no position sees tokens to its right.
    """

    token_ids_BT: Tensor
    loss_mask_BT: Tensor
    behaviour_log_probs_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    authors_BT: Tensor
    """The author of each token, as `Author` numbers; padding counts as the environment's."""
    lengths_B: Tensor
    total_trained_tokens: int
    """Of the whole iteration, not of this batch: the denominator of the loss."""

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            token_ids_BT=self.token_ids_BT.to(device),
            loss_mask_BT=self.loss_mask_BT.to(device),
            behaviour_log_probs_BT=self.behaviour_log_probs_BT.to(device),
            advantages_BT=self.advantages_BT.to(device),
            weights_BT=self.weights_BT.to(device),
            authors_BT=self.authors_BT.to(device),
            lengths_B=self.lengths_B.to(device),
            total_trained_tokens=self.total_trained_tokens,
        )


def segments(sample: Sample) -> list[Sample]:
    """The sample split where a new prompt begins, without segments that have no trained token."""
    if len(sample.segment_starts) == 1:
        return [sample]
    parts = [slice(*ends) for ends in itertools.pairwise((*sample.segment_starts, len(sample.token_ids)))]
    pieces = [
        replace(
            sample,
            token_ids=sample.token_ids[part],
            authors=sample.authors[part],
            loss_mask=sample.loss_mask[part],
            behaviour_log_probs=sample.behaviour_log_probs[part],
            weights=sample.weights[part],
            segment_starts=(0,),
        )
        for part in parts
    ]
    return [piece for piece in pieces if any(piece.loss_mask)]


def trained_tokens(samples: Sequence[Sample]) -> int:
    """The number of tokens with loss mask True."""
    return sum(sum(sample.loss_mask) for sample in samples)


def mini_batches(samples: Sequence[Sample], updates: int, seed: int, iteration: int) -> list[list[Sample]]:
    """Deals each task's samples in a seeded order to `updates` mini-batches in turn; some may stay empty.

    A sample's mini-batch depends only on the samples of its own task. So the mini-batches do not depend on how tasks
    are spread over ranks, and each holds a similar share of a task's successes and failures.
    """
    parts: list[list[Sample]] = [[] for _ in range(updates)]
    by_task: dict[str, list[Sample]] = {}
    for sample in samples:
        by_task.setdefault(sample.task_id, []).append(sample)
    for task_id, members in by_task.items():
        first = derive_seed(seed, iteration, task_id, "mini-batch")
        shuffled = sorted(
            members, key=lambda member: derive_seed(seed, iteration, member.task_id, member.member, "mini-batch")
        )
        for place, sample in enumerate(shuffled):
            parts[(first + place) % updates].append(sample)
    return parts


def micro_batches(
    samples: Sequence[Sample], *, max_tokens: int, total_trained_tokens: int, pad_id: int = 0, packed: bool = False
) -> list[Batch]:
    """Batches of samples of similar length, longest first, each of at most `max_tokens` padded tokens.

    Each segment of a sample becomes one row. A row longer than `max_tokens` gets its own batch. The sum of the
    batches' losses and its gradient do not depend on `max_tokens`.

    Args:
        samples: Each with a trained token; no samples give no batch.
        max_tokens: Padded tokens B * T of one batch.
        total_trained_tokens: Of the whole iteration.
        pad_id: Any id in the model's vocabulary.
        packed: The forward pass computes no padding: padding is not counted, and the samples of a task stay
            together, since they share their first tokens.

    Raises:
        ValueError: a sample whose first token is trained, or that has no trained token.
    """
    samples = [row for sample in samples for row in segments(sample)]
    if any(sample.loss_mask[:1] == (True,) for sample in samples):
        raise ValueError("the first token of a sample cannot be trained: nothing predicts it")
    if packed:
        ordered = sorted(samples, key=lambda sample: (sample.task_id, -_needed_length(sample), sample.member))
    else:
        ordered = sorted(samples, key=lambda sample: (-_needed_length(sample), sample.task_id, sample.member))
    chunks: list[list[Sample]] = []
    taken = 0
    for sample in ordered:
        length = _needed_length(sample)
        width = length if packed or not chunks else _needed_length(chunks[-1][0])
        if not chunks or taken + width > max_tokens:
            chunks.append([])
            taken, width = 0, length
        chunks[-1].append(sample)
        taken += width
    return [_pad(chunk, total_trained_tokens, pad_id) for chunk in chunks]


def _needed_length(sample: Sample) -> int:
    """Length up to and including the last trained token."""
    return len(sample.loss_mask) - sample.loss_mask[::-1].index(True)


def _pad(samples: Sequence[Sample], total_trained_tokens: int, pad_id: int) -> Batch:
    lengths = [_needed_length(sample) for sample in samples]

    def stream(rows: Sequence[Sequence[float]], fill: float, dtype: type[np.generic]) -> Tensor:
        padded = np.full((len(samples), max(lengths)), fill, dtype)
        for line, row, length in zip(padded, rows, lengths, strict=True):
            line[:length] = row[:length]
        return torch.from_numpy(padded)

    loss_mask_BT = stream([sample.loss_mask for sample in samples], False, np.bool_)
    advantages_B = torch.tensor([sample.advantage for sample in samples], dtype=torch.float32)
    return Batch(
        token_ids_BT=stream([sample.token_ids for sample in samples], pad_id, np.int64),
        loss_mask_BT=loss_mask_BT,
        behaviour_log_probs_BT=stream([sample.behaviour_log_probs for sample in samples], 0.0, np.float32),
        advantages_BT=advantages_B[:, None] * loss_mask_BT,
        weights_BT=stream([sample.weights for sample in samples], 1.0, np.float32),
        authors_BT=stream([sample.authors for sample in samples], Author.ENVIRONMENT, np.uint8),
        lengths_B=torch.tensor(lengths),
        total_trained_tokens=total_trained_tokens,
    )
