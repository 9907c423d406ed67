"""Records of groups for the run directory: one plain object per intervention and per sampled group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rti_exp.types import Author, Group, Intervention, Sample, Trajectory, Turn

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, control tokens visible."""


def intervention_records(iteration: int, group: Group, decode: Decode) -> list[dict[str, Any]]:
    """One record of interventions.jsonl per attempt of the group, with any outcome.

    `task` is the opening prompt as the policy saw it, `history` the turns before the harmful step (all turns if
    there is none), `after` the turns that followed the corrected one.
    """
    parents = {trajectory.member: trajectory for trajectory in group.sampled}
    return [_intervention_record(iteration, one, parents[one.parent], decode) for one in group.interventions]


def _intervention_record(iteration: int, one: Intervention, parent: Trajectory, decode: Decode) -> dict[str, Any]:
    child = one.child
    return {
        "iteration": iteration,
        "id": one.id,
        "task_id": one.task_id,
        "family": one.family,
        "parent": one.parent,
        "sample": one.sample,
        "step": one.step,
        "outcome": one.outcome.value,
        "reason": "" if one.verdict is None else one.verdict.reason,
        "answers": [] if one.verdict is None else list(one.verdict.answers),
        "evidence": one.evidence.text,
        "original": one.original,
        "correction": one.correction.text if one.correction else None,
        "thinking": one.correction.message.thinking or None if one.correction else None,
        "tokens": [decode([token_id]) for token_id in one.correction.action_ids] if one.correction else [],
        "source": one.correction.source if one.correction else None,
        "checks": [
            {"name": check.name, "judge": check.judge, "passed": check.passed, "answer": check.answer}
            for check in one.checks
        ],
        "perplexity": one.perplexity,
        "log_probs": list(one.log_probs),
        "calibration_log_probs": list(one.calibration_log_probs),
        "weights": list(one.weights),
        "state_hash": one.state_hash,
        "shadow": one.shadow,
        "child": child.member if child else None,
        "child_reward": child.reward if child else None,
        "error": one.error,
        "task": decode(parent.turns[0].context_ids) if parent.turns else "",
        "history": transcript(parent.turns[: one.step]),
        "after": transcript(child.turns[child.fork.step + 1 :]) if child and child.fork else "",
    }


def transcript(turns: Sequence[Turn]) -> str:
    """Turns and the environment's answers, one line per message, each prefixed by its role."""
    messages = [message for turn in turns for message in (turn.message, *turn.observations)]
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def rollout_record(
    iteration: int,
    group: Group,
    advantages: Sequence[float],
    samples: Sequence[Sample | None],
    decode: Decode,
) -> dict[str, Any]:
    """One record of rollouts.jsonl: the group as sampled, and the accepted corrections that joined it.

    Streams hold one value per token: id, author (0 environment, 1 policy, 2 corrector, 3 teacher), whether it was
    trained, weight (rho, or a sampled token's importance weight) and behaviour log-prob (null for the
    environment's tokens).

    Args:
        advantages: One for each of `group.trajectories`.
        samples: The trained part of each of them; None where nothing was trained.
    """
    merged = [trajectory for trajectory in group.trajectories if trajectory.fork is not None]
    trained = dict(zip(map(id, group.trajectories), zip(advantages, samples, strict=True), strict=True))
    return {
        "iteration": iteration,
        "task_id": group.task.id,
        "family": group.task.family,
        "trajectories": [
            _trajectory_record(one, *trained.get(id(one), (None, None)), decode) for one in (*group.sampled, *merged)
        ],
    }


def _trajectory_record(
    trajectory: Trajectory, advantage: float | None, sample: Sample | None, decode: Decode
) -> dict[str, Any]:
    fork = trajectory.fork
    streams: dict[str, list[Any]] = {"token_ids": [], "authors": [], "weights": [], "log_probs": []}
    for step, turn in enumerate(trajectory.turns):
        context, action = len(turn.context_ids), len(turn.action_ids)
        corrected = turn.author is Author.CORRECTOR and fork is not None and fork.step == step
        streams["token_ids"] += [*turn.context_ids, *turn.action_ids]
        streams["authors"] += [int(Author.ENVIRONMENT)] * context + [int(turn.author)] * action
        sampled = turn.importance_weights if turn.author is Author.POLICY else ()
        weights = trajectory.correction_weights if corrected else sampled
        streams["weights"] += [1.0] * context + (list(weights) or [1.0] * action)
        streams["log_probs"] += [None] * context + list(turn.action_log_probs)
    mask = (False,) * len(streams["token_ids"]) if sample is None else sample.loss_mask
    return {
        "member": trajectory.member,
        "status": trajectory.status.value,
        "reward": trajectory.reward,
        "reward_parts": dict(trajectory.reward_parts),
        "advantage": advantage,
        "fork": None
        if fork is None
        else {"parent": fork.parent, "step": fork.step, "intervention": fork.intervention_id},
        "error": trajectory.error,
        "text": decode(streams["token_ids"]),
        **streams,
        "mask": [int(trained) for trained in mask],
    }
