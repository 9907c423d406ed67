"""Group -> Samples: token streams with author, loss mask, weight and behaviour log-prob of each token."""

from __future__ import annotations

from collections.abc import Sequence

from rti_exp.config.settings import Scope, UpdateSettings
from rti_exp.objective.algorithm import Algorithm
from rti_exp.training.iteration import has_signal
from rti_exp.types import Author, Group, Sample, Trajectory


def iteration_samples(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float]],
    algorithm: Algorithm,
    settings: UpdateSettings,
) -> list[list[Sample | None]]:
    """The trained part of each trajectory of each group; None where nothing is trained."""
    samples: list[list[Sample | None]] = []
    for group, advantages_G in zip(groups, advantages, strict=True):
        # Under dynamic sampling a group without signal is dropped, the KL term included.
        if settings.dynamic_sampling and not has_signal(advantages_G):
            samples.append([None] * len(group.trajectories))
            continue
        # Without a KL term, skipping advantage 0 is exact: its loss and gradient are 0.
        keep_zero = algorithm.trains_without_advantage
        samples.append(group_samples(group, advantages_G, settings.scope, keep_zero_advantage=keep_zero))
    return samples


def to_samples(
    group: Group, advantages_G: Sequence[float], scope: Scope, *, keep_zero_advantage: bool = False
) -> list[Sample]:
    """The samples of a group's trained trajectories: `group_samples` without the None."""
    samples = group_samples(group, advantages_G, scope, keep_zero_advantage=keep_zero_advantage)
    return [sample for sample in samples if sample is not None]


def group_samples(
    group: Group, advantages_G: Sequence[float], scope: Scope, *, keep_zero_advantage: bool = False
) -> list[Sample | None]:
    """The trained part of each of `group.trajectories`; None where nothing is trained.

    Infrastructure failures, trajectories with advantage 0 and trajectories without a trained token give None.
    `keep_zero_advantage` keeps the second kind: a loss with a KL term trains on them too.

    `scope` restricts corrected trajectories only; of all others every token that the policy wrote is trained. Where
    parent and child are both in the group (merge "append"), their shared prefix is trained once, in the child, as
    if the child had replaced its parent.

    Args:
        group: Merged after the interventions.
        advantages_G: One for each of `group.trajectories`.
        scope: The trained tokens of a corrected trajectory.

    Raises:
        ValueError: a wrong number of advantages, or a corrected trajectory without the weights of its corrected turn.
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
    """For each trajectory, the number of its first steps that are trained in another trajectory that shares them."""
    members = {trajectory.member: index for index, trajectory in enumerate(trajectories) if trajectory.fork is None}
    children: dict[int, list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        if trajectory.fork is not None and trajectory.valid:
            children.setdefault(trajectory.fork.parent, []).append(index)
    shared_G = [0] * len(trajectories)
    for parent, siblings in children.items():
        steps = {index: _fork_step(trajectories[index]) for index in siblings}
        # The child that forked last has the longest shared prefix, and trains all of it.
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
