"""Group -> Samples -> Batches: token streams with author, mask and weight, then padded tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rti_exp.config.settings import Scope
from rti_exp.randomness import derive_seed
from rti_exp.types import Author, Group, Sample, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Right-padded [B, T] streams. The value at t belongs to the token at t, which the prefix up to t - 1 predicts.

    A row ends with its last trained token: what follows cannot change the loss. Padding has mask False, log-prob
    and advantage 0, weight 1. A causal model needs no attention mask: what stands right of a token cannot change it.
    """

    token_ids_BT: Tensor
    loss_mask_BT: Tensor
    behaviour_log_probs_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    authors_BT: Tensor
    """Who wrote each token, as `Author`'s numbers; padding is the environment's."""
    lengths_B: Tensor
    total_trained_tokens: int
    """Of the whole iteration, not of this batch: what a loss divides by."""

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


def to_samples(
    group: Group, advantages_G: Sequence[float], scope: Scope, *, keep_zero_advantage: bool = False
) -> list[Sample]:
    """The trainable trajectories of a group: `group_samples` without the None."""
    samples = group_samples(group, advantages_G, scope, keep_zero_advantage=keep_zero_advantage)
    return [sample for sample in samples if sample is not None]


def group_samples(
    group: Group, advantages_G: Sequence[float], scope: Scope, *, keep_zero_advantage: bool = False
) -> list[Sample | None]:
    """For each of `group.trajectories` what is trained of it; None where nothing is.

    Infrastructure failures, trajectories with advantage 0 and those with nothing to train are left out, so a
    group without signal gives []. `keep_zero_advantage` keeps the second kind: a loss with a KL term trains on
    them too.

    `scope` restricts trajectories with a fork only; of all others everything that the policy wrote is trained.
    Where parent and child are both in the group (merge "append"), the prefix that they share counts once, for
    the child, as it would had the child replaced its parent: the parent's failure is the corrected step's.

    Args:
        group: Merged after the interventions.
        advantages_G: One for each of `group.trajectories`.
        scope: Which tokens of a corrected trajectory are trained.

    Raises:
        ValueError: a count that does not fit, or a forked trajectory without the weights of its corrected turn.
    """
    if len(advantages_G) != len(group.trajectories):
        raise ValueError(f"{len(advantages_G)} advantages for {len(group.trajectories)} trajectories")
    shared_G = _steps_trained_elsewhere(group.trajectories)
    samples = [
        _sample(trajectory, advantage, scope, first_step=shared)
        if trajectory.valid and (keep_zero_advantage or advantage != 0)
        else None
        for trajectory, advantage, shared in zip(group.trajectories, advantages_G, shared_G, strict=True)
    ]
    return [sample if sample is not None and any(sample.loss_mask) else None for sample in samples]


def _steps_trained_elsewhere(trajectories: Sequence[Trajectory]) -> list[int]:
    """For each trajectory, how many of its first steps are trained in another one that shares them."""
    members = {trajectory.member: index for index, trajectory in enumerate(trajectories) if trajectory.fork is None}
    children: dict[int, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        if trajectory.fork is not None and trajectory.valid:
            children.setdefault(trajectory.fork.parent, []).append(index)
    shared_G = [0] * len(trajectories)
    for parent, siblings in children.items():
        steps = {index: _fork_step(trajectories[index]) for index in siblings}
        # The child that forked last holds the longest shared prefix; it trains all of it.
        owner = max(siblings, key=lambda index: steps[index])
        for index in siblings:
            shared_G[index] = 0 if index == owner else steps[index]
        if parent in members:
            shared_G[members[parent]] = steps[owner]
    return shared_G


def _fork_step(trajectory: Trajectory) -> int:
    if trajectory.fork is None:
        raise ValueError(f"trajectory {trajectory.task_id}/{trajectory.member} has no fork")
    return trajectory.fork.step


def _trained(trajectory: Trajectory, step: int, scope: Scope) -> bool:
    if trajectory.fork is None or scope is Scope.all:
        return True
    if scope is Scope.suffix:
        return step >= trajectory.fork.step
    return step == trajectory.fork.step


def _sample(trajectory: Trajectory, advantage: float, scope: Scope, *, first_step: int) -> Sample:
    token_ids: list[int] = []
    authors: list[Author] = []
    loss_mask: list[bool] = []
    log_probs: list[float] = []
    weights: list[float] = []
    segment_starts = [0]
    for step, turn in enumerate(trajectory.turns):
        if turn.new_segment and token_ids:
            segment_starts.append(len(token_ids))
        context, action = len(turn.context_ids), len(turn.action_ids)
        trained = step >= first_step and _trained(trajectory, step, scope)
        token_ids += turn.context_ids + turn.action_ids
        authors += [Author.ENVIRONMENT] * context + [turn.author] * action
        loss_mask += [False] * context + [trained] * action
        log_probs += [0.0] * context + [value if trained else 0.0 for value in turn.action_log_probs]
        weights += [1.0] * context + _turn_weights(trajectory, step)
    return Sample(
        token_ids=tuple(token_ids),
        authors=tuple(authors),
        loss_mask=tuple(loss_mask),
        behaviour_log_probs=tuple(log_probs),
        weights=tuple(weights),
        advantage=advantage,
        task_id=trajectory.task_id,
        member=trajectory.member,
        segment_starts=tuple(segment_starts),
    )


def segments(sample: Sample) -> list[Sample]:
    """The sample cut where a new prompt begins; a segment without a trained token is left out."""
    if len(sample.segment_starts) == 1:
        return [sample]
    parts = [slice(*ends) for ends in itertools.pairwise((*sample.segment_starts, len(sample.token_ids)))]
    cut = [
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
    return [one for one in cut if any(one.loss_mask)]


def _turn_weights(trajectory: Trajectory, step: int) -> list[float]:
    turn = trajectory.turns[step]
    if turn.author is Author.POLICY and turn.importance_weights:
        return list(turn.importance_weights)
    if turn.author is not Author.CORRECTOR:
        return [1.0] * len(turn.action_ids)
    weights = trajectory.correction_weights
    if trajectory.fork is None or trajectory.fork.step != step or len(weights) != len(turn.action_ids):
        raise ValueError(
            f"turn {step} of {trajectory.task_id}/{trajectory.member} is a correction of {len(turn.action_ids)} "
            f"tokens; the trajectory's fork is {trajectory.fork} with {len(weights)} weights"
        )
    return list(weights)


def trained_tokens(samples: Sequence[Sample]) -> int:
    """How many tokens of `samples` have loss mask True."""
    return sum(sum(sample.loss_mask) for sample in samples)


def mini_batches(samples: Sequence[Sample], updates: int, seed: int, iteration: int) -> list[list[Sample]]:
    """Deals each task's samples, in a seeded order, in turn to `updates` mini-batches; some may stay empty.

    A sample's place depends on its own task's samples only, so that the parts are the same however the tasks
    are spread over ranks, and each part holds successes and failures of each task about alike.
    """
    parts: list[list[Sample]] = [[] for _ in range(updates)]
    by_task: dict[str, list[Sample]] = {}
    for sample in samples:
        by_task.setdefault(sample.task_id, []).append(sample)
    for task_id, members in by_task.items():
        first = derive_seed(seed, iteration, task_id, "mini-batch")
        shuffled = sorted(members, key=lambda one: derive_seed(seed, iteration, one.task_id, one.member, "mini-batch"))
        for place, sample in enumerate(shuffled):
            parts[(first + place) % updates].append(sample)
    return parts


def micro_batches(
    samples: Sequence[Sample], *, max_tokens: int, total_trained_tokens: int, pad_id: int = 0, packed: bool = False
) -> list[Batch]:
    """Batches of samples of similar length, longest first, each of at most `max_tokens` padded tokens.

    Where padding costs nothing (`packed`) it is not counted, and the samples of a task stay together, since they begin
    alike.

    Each segment of a sample is a row of its own. One longer than that gets a batch of its own. The sum of the
    batches' losses and its gradient do not depend on `max_tokens`.

    Args:
        samples: Each with a trained token; no samples give no batch.
        max_tokens: Padded tokens B * T of one batch.
        total_trained_tokens: Of the whole iteration.
        pad_id: Any id that the model's embedding knows.
        packed: As `rti_exp.training.token_log_probs.TrainedPositions.packs`.

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
