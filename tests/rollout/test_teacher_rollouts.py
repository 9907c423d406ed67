from __future__ import annotations

import math
from typing import Any

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.teacher_rollouts import TeacherRollouts
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Author, Group, Status
from tests.support.fakes import GuessWorld, right_texts, tiny_tokenizer, wrong_texts

RENDERER = TokenRenderer(tiny_tokenizer())
SETTINGS = default_settings(RolloutSettings, max_tokens=32, max_context=256)


def plays(texts: Any) -> Any:
    def script(prompt: str, seed: int) -> str:
        task = next(task for task in GuessWorld().tasks("train") if f"box {task.payload['box']}<" in prompt)
        return texts(task)[prompt.count("<|tool|>")]

    return script


def collector(world: GuessWorld, texts: Any, author: Author, log_prob: float) -> Collector:
    engine = ScriptedEngine(plays(texts), RENDERER, log_probs=log_prob)
    return Collector(environment=world, engine=engine, renderer=RENDERER, settings=SETTINGS, seed=3, author=author)


def rolled_out(world: GuessWorld, *, members: int = 1, fraction: float = 1.0, policy: Any = wrong_texts) -> Any:
    """(groups, the policy's engine, the teacher's engine); the policy has two members per group."""
    students = collector(world, policy, Author.POLICY, -0.5)
    teacher = collector(world, right_texts, Author.TEACHER, -0.25)
    add = TeacherRollouts(teacher=teacher, policy=students, members=members, prefix_fraction=fraction)
    groups: list[Group] = add(students.collect(world.tasks("train")[:2], 2, 1), 1)
    return groups, students.engine, teacher.engine


def authors(group: Group, place: int) -> list[Author]:
    return [turn.author for turn in group.sampled[place].turns]


def test_the_teachers_members_come_last_with_their_own_tokens_and_rewards() -> None:
    groups, _, engine = rolled_out(GuessWorld(), members=2)
    for group in groups:
        assert group.sampled == group.trajectories
        assert [trajectory.member for trajectory in group.sampled] == [0, 1, 2, 3]
        assert [trajectory.reward for trajectory in group.sampled] == [0.0, 0.0, 1.0, 1.0]
        assert authors(group, 0) == [Author.POLICY] * 3
        assert authors(group, 3) == [Author.TEACHER] * 3
        assert {value for turn in group.sampled[2].turns for value in turn.action_log_probs} == {-0.25}
    assert len(engine.generate_requests) == 2 * 2 * 3
    assert len({request.seed for request in engine.generate_requests}) == 12


@pytest.mark.parametrize(("fraction", "kept"), [(0.1, 1), (1 / 3, 1), (0.5, 2), (0.9, 3), (1.0, 3)])
def test_the_policy_continues_after_the_teachers_share(fraction: float, kept: int) -> None:
    groups, engine, _ = rolled_out(GuessWorld(), fraction=fraction, policy=right_texts)
    for group in groups:
        assert authors(group, 2) == [Author.TEACHER] * kept + [Author.POLICY] * (3 - kept)
        assert group.sampled[2].reward == 1.0
        assert group.sampled[2].fork is None
    assert len(engine.generate_requests) == 2 * 2 * 3 + 2 * (3 - kept)


def test_the_policys_continuation_is_scored() -> None:
    groups, _, _ = rolled_out(GuessWorld(), fraction=0.5)
    assert [group.sampled[2].turns[-1].message.content for group in groups] == ["stuck", "stuck"]
    assert [group.sampled[2].reward for group in groups] == [0.0, 0.0]


def test_a_replay_mismatch_costs_the_member() -> None:
    groups, _, _ = rolled_out(GuessWorld(drift=True), fraction=0.5)
    for group in groups:
        broken = group.sampled[2]
        assert broken.status is Status.INFRASTRUCTURE_FAILURE
        assert math.isnan(broken.reward)
        assert "the replay led to state" in (broken.error or "")
        assert [trajectory.valid for trajectory in group.sampled] == [True, True, False]
