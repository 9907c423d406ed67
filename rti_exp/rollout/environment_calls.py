"""The boundary to environments: the one place where their errors are classified."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs.base import Environment, Episode, InfrastructureError, StepResult
from rti_exp.types import Fork, Status, Task, Trajectory, Turn

LARGEST_REWARD = 1e9
"""A larger reward is the environment's mistake: the statistics of a group would overflow."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class ReplayMismatch(InfrastructureError):
    """Replaying an episode's turns led to another state."""


def environment_call(call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """`call(...)`, a call into an environment. Whatever it raises is an infrastructure failure, never a reward.

    Raises:
        InfrastructureError: the call raised; the message names the original error.
        EngineUnusable: a model behind the environment (user, judge) denies access. The job must end.
    """
    try:
        return call(*args, **kwargs)
    except (InfrastructureError, EngineUnusable):
        raise
    except Exception as error:  # third-party code may raise anything; it is classified here, once
        raise InfrastructureError(f"{type(error).__name__}: {error}") from error


def check_result(result: StepResult) -> None:
    """
    Raises:
        InfrastructureError: the reward is not a usable number, or an observation is not text.
    """
    if result.done and not abs(result.reward) <= LARGEST_REWARD:  # also true for NaN
        raise InfrastructureError(f"the environment gave the reward {result.reward}")
    if not all(isinstance(message.content, str) for message in result.observations):
        raise InfrastructureError("the environment gave an observation that is not text")


def replayed_episode(environment: Environment, task: Task, turns: Sequence[Turn], state_hash: str) -> Episode:
    """An episode in the state that `turns` led to.

    Raises:
        ReplayMismatch: the state is not the one with `state_hash`.
        InfrastructureError: the environment failed.
    """
    start = environment_call(environment.start, task)
    episode = environment_call(start.fork, [turn.message for turn in turns])
    replayed_hash = environment_call(episode.state_hash)
    if replayed_hash != state_hash:
        raise ReplayMismatch(f"the replay led to state {replayed_hash} instead of {state_hash}")
    return episode


def broken_trajectory(
    task: Task, member: int, error: InfrastructureError, *, turns: Sequence[Turn] = (), fork: Fork | None = None
) -> Trajectory:
    """The trajectory of an episode whose environment failed at its start or after `turns`."""
    return Trajectory(
        task_id=task.id,
        member=member,
        turns=tuple(turns),
        status=Status.INFRASTRUCTURE_FAILURE,
        reward=math.nan,
        fork=fork,
        error=str(error) or type(error).__name__,
    )
