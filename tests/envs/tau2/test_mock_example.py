"""examples/tau2_mock.py: what it teaches is right about the tasks, and its documents are what rollouts see."""

from __future__ import annotations

from pathlib import Path

import pytest

from rti_exp.experiment.parts import default_environment
from tests.support.tau2_play import play, say, task_of, use, world  # skips without the extra

if not Path(__file__).parents[3].joinpath("examples").is_dir():
    pytest.skip("the examples are part of the checkout", allow_module_level=True)

from examples.tau2_mock import PLANS, Teacher
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.rollout.tool_calls import parse_tool_call
from rti_exp.types import Message
from tests.support.fakes import tiny_tokenizer


def turn(text: str) -> Message:
    if not text.startswith("{"):
        return say(text)
    call = parse_tool_call(text)
    return use(call.name, **call.arguments)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_the_right_step_succeeds_and_the_wrong_ones_fail(name: str) -> None:
    plan, task = PLANS[name], task_of("mock", name)
    for first, reward in ((plan.right, 1.0), *((wrong, 0.0) for wrong in plan.wrong)):
        assert play(world("mock").start(task), [turn(first), say(plan.last)]).reward == reward, first


def test_documents_train_turns_and_answers_alone() -> None:
    renderer = TokenRenderer(tiny_tokenizer())
    mock = default_environment(
        "tau2_telecom", domain="mock", train_split="base", heldout_split="base", only=["update_task_1"]
    )
    teacher = Teacher(mock, renderer, seed=0)
    [task], plan = mock.tasks("train"), PLANS["update_task_1"]
    whole = teacher._rollout(task, plan.right, plan)
    trained_ids = [i for i, trained in zip(whole.token_ids, whole.trained, strict=True) if trained]
    assert renderer.text(trained_ids) == f"{plan.right}<|end|>{plan.last}<|end|>"
    given = teacher._rollout(task, plan.right, plan, first_is_trained=False)
    trained_ids = [i for i, trained in zip(given.token_ids, given.trained, strict=True) if trained]
    assert given.token_ids == whole.token_ids
    assert renderer.text(trained_ids) == f"{plan.last}<|end|>"
    judged = teacher._validator(task, plan)
    text = renderer.text(judged.token_ids)
    assert "<|system|>judge: DB: the records are in the end as the right actions leave them" in text
    trained_ids = [i for i, trained in zip(judged.token_ids, judged.trained, strict=True) if trained]
    assert renderer.text(trained_ids).startswith('{"harmful": ')
