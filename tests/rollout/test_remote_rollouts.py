"""Episodes of a remote model, without a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.envs.base import StepResult
from rti_exp.rollout.remote_rollouts import RemoteRollouts
from rti_exp.types import Message, Status
from tests.support.fakes import GuessWorld


class Model:
    def reply(self, messages: Sequence[Message], **_: Any) -> Any:
        return SimpleNamespace(message=Message(role="assistant", content="red"))


def scoring(reward: float, *observations: Any) -> GuessWorld:
    """A world whose first turn ends the episode with this reward."""
    world = GuessWorld()
    start = world.start

    def started(task: Any) -> Any:
        episode = start(task)
        episode.step = lambda message: StepResult(observations=observations, done=True, reward=reward)
        return episode

    world.start = started
    return world


def rolled_out(world: GuessWorld) -> Any:
    rollouts = RemoteRollouts(
        model=Model(),  # pyright: ignore[reportArgumentType]
        settings=RemotePolicySettings(),
        temperature=0.0,
        top_p=1.0,
        seed=0,
    )
    return rollouts.run(world, world.tasks("heldout")[0], 0)


def test_a_reward_is_kept():
    trajectory = rolled_out(scoring(1.0))
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.OK, 1.0, 1)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e10])
def test_an_unusable_reward_is_an_infrastructure_failure_and_not_zero(reward: float):
    trajectory = rolled_out(scoring(reward))
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
    assert math.isnan(trajectory.reward)
    assert trajectory.error == f"the environment gave the reward {reward}"


def test_an_observation_that_is_not_text_is_an_infrastructure_failure():
    trajectory = rolled_out(scoring(1.0, Message(role="tool", content=None)))  # pyright: ignore[reportArgumentType]
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
