"""Turns, trajectories and groups written down by hand, for tests of what comes after the rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rti_exp.types import Author, Fork, Group, Intervention, Message, Status, Task, Trajectory, Turn

TASK = Task(id="task", family="family", split="train")


def turn(
    context: Sequence[int],
    action: Sequence[int],
    *,
    author: Author = Author.POLICY,
    log_probs: Sequence[float] | None = None,
) -> Turn:
    return Turn(
        context_ids=tuple(context),
        action_ids=tuple(action),
        action_log_probs=tuple(log_probs) if log_probs is not None else (-0.5,) * len(action),
        message=Message(role="assistant", content=f"said {list(action)}"),
        observations=(Message(role="tool", content=f"saw {list(context)}"),),
        author=author,
        state_hash="",
    )


def trajectory(
    turns: Sequence[Turn],
    *,
    member: int = 0,
    reward: float = 0.0,
    fork: tuple[int, int] | None = None,
    weights: Sequence[float] = (),
    status: Status | None = None,
    task: Task = TASK,
) -> Trajectory:
    """`fork` is (parent, step); a NaN reward is an infrastructure failure."""
    broken = math.isnan(reward)
    return Trajectory(
        task_id=task.id,
        member=member,
        turns=tuple(turns),
        status=status or (Status.INFRASTRUCTURE_FAILURE if broken else Status.OK),
        reward=reward,
        fork=None if fork is None else Fork(parent=fork[0], step=fork[1], intervention_id="attempt"),
        correction_weights=tuple(weights),
        error="broken" if broken else None,
    )


def group(
    sampled: Sequence[Trajectory],
    merged: Sequence[Trajectory] | None = None,
    *,
    interventions: Sequence[Intervention] = (),
    task: Task = TASK,
) -> Group:
    return Group(
        task=task,
        sampled=tuple(sampled),
        trajectories=tuple(sampled if merged is None else merged),
        interventions=tuple(interventions),
    )
