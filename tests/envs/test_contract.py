"""What an environment may give: everything else is an infrastructure failure, or refused before a run begins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.contract import checked_evidence, checked_hash, checked_opening, checked_result, checked_tasks
from rti_exp.types import Evidence, Message, Task

USER = Message(role="user", content="Hello.")


def ended(reward: Any, **parts: Any) -> StepResult:
    return StepResult(observations=(), done=True, reward=reward, reward_parts=parts)


@pytest.mark.parametrize(
    "reward",
    [1, True, 1.0, np.float32(1.0), np.float64(1.0), np.int64(1), np.bool_(True), np.array(1.0), torch.tensor(1.0)],
)
def test_a_scalar_is_a_reward(reward: Any) -> None:
    result = checked_result(ended(reward, part=reward))
    assert (result.reward, result.reward_parts) == (1.0, {"part": 1.0})
    assert type(result.reward) is type(result.reward_parts["part"]) is float


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (None, "the reward None; it must be a number"),
        ("1.0", "the reward '1.0'; it must be a number"),
        (b"1", "the reward b'1'; it must be a number"),
        (np.array([1.0]), r"the reward array\(\[1.\]\); it must be a number"),
        (torch.tensor([1.0]), r"the reward tensor\(\[1.\]\); it must be a number"),
        ([1.0], r"the reward \[1.0\]; it must be a number"),
        (1j, "the reward 1j; it must be a number"),
        (10**400, "the reward 10.*; it must be a number"),
        (math.nan, r"the reward nan; it must be at most 1e\+09"),
        (-math.inf, r"the reward -inf; it must be at most 1e\+09"),
    ],
)
def test_everything_else_is_not_a_reward(reward: Any, text: str) -> None:
    with pytest.raises(InfrastructureError, match=f"^the environment gave {text}"):
        checked_result(ended(reward))


def test_a_part_of_the_reward_is_a_number_too() -> None:
    with pytest.raises(InfrastructureError, match="the reward part form = None; it must be a number"):
        checked_result(ended(1.0, form=None))


def test_the_reward_of_a_step_that_does_not_end_the_episode_does_not_count() -> None:
    result = checked_result(StepResult(observations=(USER,), done=False, reward=None))  # pyright: ignore[reportArgumentType]
    assert result == StepResult(observations=(USER,), done=False)


@pytest.mark.parametrize("result", [None, ("", False), USER])
def test_a_step_gives_a_step_result(result: Any) -> None:
    with pytest.raises(InfrastructureError, match=r"the environment's step gave .*; it must give a StepResult"):
        checked_result(result)


@pytest.mark.parametrize("message", ["Hello.", None, Message(role="tool", content=7)])  # pyright: ignore[reportArgumentType]
def test_messages_are_text(message: Any) -> None:
    with pytest.raises(InfrastructureError, match="gave an observation that is not text: "):
        checked_result(StepResult(observations=(message,), done=False))
    with pytest.raises(InfrastructureError, match="gave an opening message that is not text: "):
        checked_opening([USER, message], ())


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("search", "the tool 'search'; it must be an object with a name"),
        ({"parameters": {}}, "it must be an object with a name"),
        ({"name": "search", "parameters": {"type": str}}, "tool 'search' must be JSON: .*not JSON serializable"),
    ],
)
def test_tools_are_json_schemas(tool: Any, text: str) -> None:
    with pytest.raises(InfrastructureError, match=text):
        checked_opening([USER], [tool])


def test_hashes_and_evidence() -> None:
    assert (checked_hash("a"), checked_hash(7)) == ("a", "7")
    evidence = Evidence(level="rubric", rubric=("open",))
    assert checked_evidence(evidence) is evidence
    with pytest.raises(InfrastructureError, match="the state hash None; it must be text"):
        checked_hash(None)
    for broken in ("open", None, Evidence(level="rubric", rubric=(None,))):  # pyright: ignore[reportArgumentType]
        with pytest.raises(InfrastructureError, match="it must be Evidence of texts"):
            checked_evidence(broken)


def test_ids_are_unique_in_a_split() -> None:
    first, second = (Task(id=name, family="f", split="train") for name in ("a", "b"))
    assert checked_tasks(iter([first, second]), "train") == [first, second]
    assert checked_tasks([], "heldout") == []
    with pytest.raises(ValueError, match=r'tasks\("train"\) must give each id once; \'b\' comes 2 times'):
        checked_tasks([first, second, second], "train")
    with pytest.raises(ValueError, match="must give Task objects with a text as id; it gave 'a'"):
        checked_tasks(["a"], "train")
