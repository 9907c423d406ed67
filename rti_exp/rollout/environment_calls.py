"""The boundary to environments: the one place where their errors are classified."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs.base import Environment, Episode, InfrastructureError, StepResult
from rti_exp.envs.contract import checked_hash, checked_result, checked_tools
from rti_exp.types import Fork, Message, Status, Task, Trajectory, Turn

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
    except (Exception, SystemExit) as error:  # third-party code may raise anything; it is classified here, once
        raise InfrastructureError(f"{type(error).__name__}: {error}") from error


def current_tools(episode: Episode) -> tuple[Mapping[str, Any], ...]:
    """
    Raises:
        InfrastructureError: the environment failed, or gave something else than tools.
    """
    return environment_call(lambda: checked_tools(episode.tools))


def hash_of(episode: Episode) -> str:
    """
    Raises:
        InfrastructureError: the environment failed, or gave no hash.
    """
    return environment_call(lambda: checked_hash(episode.state_hash()))


def step_of(episode: Episode, message: Message) -> StepResult:
    """The environment's answer to a turn.

    Raises:
        InfrastructureError: the environment failed, or its answer breaks the contract (`rti_exp.envs.contract`).
    """
    return environment_call(lambda: checked_result(episode.step(message)))


def replayed_episode(environment: Environment, task: Task, turns: Sequence[Turn], state_hash: str) -> Episode:
    """An episode in the state that `turns` led to.

    Raises:
        ReplayMismatch: the state is not the one with `state_hash`.
        InfrastructureError: the environment failed.
    """
    episode = environment_call(lambda: environment.start(task).fork([turn.message for turn in turns]))
    replayed_hash = hash_of(episode)
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
