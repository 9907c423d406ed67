"""MCP: a judge model's verdicts, and judges that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("mcp", reason="needs the extra mcp")

from rti_exp.engines.base import EngineUnavailable, EngineUnusable
from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.judge import Judge, read_verdict
from rti_exp.rollout.environment_calls import environment_call
from rti_exp.types import Message, ToolCall
from tests.support.mcp import (
    COUNT_TO_3,
    START,
    play,
    say,
    task_file,
    use,
)


@dataclass
class FakeJudge:
    answers: list[str | Exception]
    asked: list[tuple[Sequence[Message], float, int | None]] = field(default_factory=list)

    def reply(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int | None) -> Any:
        self.asked.append((messages, temperature, seed))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return type("Reply", (), {"message": say(answer)})()


def judged(folder: Path, counter: list[str], model: FakeJudge) -> Mcp:
    rubric = [{"check": "judge", "name": "polite", "question": "Is the answer polite?", "text": "the answer is polite"}]
    path = task_file(folder, {**COUNT_TO_3, "rubric": rubric})
    return default_environment("mcp", command=counter, tasks_file=path, judge_model=model, shared=True, seconds=START)


def test_the_judge_reads_calls_without_escapes_and_once() -> None:
    model = FakeJudge(['{"met": true}'])
    call = ToolCall(name="go", arguments={"to": "Zürich"})
    text = '{"name": "go", "arguments": {"to": "Zürich"}}'
    Judge(model).met([Message(role="assistant", content=text, tool_calls=(call,))], "Was it Zürich?")
    assert model.asked[0][0][1].content.count(text) == 1


def test_a_judges_verdict_is_the_reward(tmp_path: Path, counter: list[str]) -> None:
    model = FakeJudge(['{"met": true}', '{"met": false}'])
    world = judged(tmp_path, counter, model)
    task = world.tasks("train")[0]
    episode = world.start(task)
    assert episode.evidence("rubric").failed == ("the answer is polite",)  # not over: nobody is asked
    episode.step(use("add", n=0))
    assert episode.step(say("Three, please.")).reward == 1.0
    assert episode.evidence("rubric").failed == ()
    rude = [use("add", n=0), say("Three!")]
    assert play(world.start(task), rude).reward == 0.0
    assert world.start(task).fork(rude).evidence("rubric").failed == ("the answer is polite",)
    assert len(model.asked) == 2  # what it said of a conversation it is not asked again
    text = model.asked[0][0][1].content
    assert "[user]\nCount to three." in text
    assert '[assistant]\n{"name": "add", "arguments": {"n": 0}}' in text
    assert "[tool]\nnow 0" in text
    assert text.endswith("The condition: Is the answer polite?")


def test_a_judge_that_cannot_be_read_is_asked_again_with_other_seeds() -> None:
    model = FakeJudge(["yes", '{"met": "true"}', '<think>{"met": false}</think>```json\n{"met": true}\n```'])
    assert Judge(model, retries=2).met([say("x")], "?") is True
    assert [(temperature, seed) for _, temperature, seed in model.asked] == [(0.0, 0), (1.0, 1), (1.0, 2)]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([EngineUnavailable("down")], "the judge failed: EngineUnavailable: down"),
        (["yes"] * 3, "the judge gave no verdict: 'yes'"),
    ],
)
def test_a_judge_that_fails_gives_no_reward(
    tmp_path: Path, counter: list[str], answers: list[Any], message: str
) -> None:
    world = judged(tmp_path, counter, FakeJudge(answers))
    with pytest.raises(InfrastructureError, match=message):
        world.start(world.tasks("train")[0]).step(say("3"))


def test_a_judge_whose_endpoint_refuses_us_ends_the_job(tmp_path: Path, counter: list[str]) -> None:
    world = judged(tmp_path, counter, FakeJudge([EngineUnusable("the key is in JUDGE_KEY")]))
    episode = world.start(world.tasks("train")[0])
    with pytest.raises(EngineUnusable, match=r"^the key is in JUDGE_KEY$"):
        environment_call(episode.step, say("3"))


@pytest.mark.parametrize(
    "text", ["", "true", '{"met": 1}', '{"met": null}', '{"met": true, "why": "x"}', '[{"met": true}]', "met: true"]
)
def test_other_answers_are_not_verdicts(text: str) -> None:
    assert read_verdict(text) is None


def test_a_judges_condition_needs_a_judge(tmp_path: Path) -> None:
    rubric = [{"check": "judge", "question": "?", "text": "x"}]
    path = task_file(tmp_path, {**COUNT_TO_3, "rubric": rubric})
    with pytest.raises(ValueError, match=r"env\.judge=null: must be a model's settings, task 'three' has a judge's"):
        default_environment("mcp", url="http://x", tasks_file=path)
