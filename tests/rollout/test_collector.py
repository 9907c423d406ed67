import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import EngineUnavailable, GenerateRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.randomness import derive_seed
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.live_episode import LiveEpisode
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Completion, Fork, Message, Status
from tests.support.fakes import GuessEpisode, GuessWorld, right_texts, tiny_model, tiny_tokenizer, wrong_texts

RENDERER = TokenRenderer(tiny_tokenizer())
SETTINGS = default_settings(RolloutSettings, max_tokens=32, max_context=256)


def odd_succeeds(prompt: str, seed: int) -> str:
    """Succeeds if the seed of the first turn is odd."""
    task = next(task for task in GuessWorld().tasks("train") if f"box {task.payload['box']}<" in prompt)
    turn = prompt.count("<|tool|>")
    right = seed % 2 == 1 if turn == 0 else f"took {task.payload['key']}" in prompt
    return (right_texts if right else wrong_texts)(task)[turn]


def collector(world: GuessWorld, engine: Any = None, *, seed: int = 0, renderer: TokenRenderer = RENDERER) -> Collector:
    engine = engine or ScriptedEngine(odd_succeeds, RENDERER)
    return Collector(environment=world, engine=engine, renderer=renderer, settings=SETTINGS, seed=seed)


def test_groups_in_order_with_derived_seeds():
    world = GuessWorld()
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    tasks = world.tasks("train")
    groups = collector(world, engine, seed=7).collect(tasks, 3, 5)
    assert [group.task for group in groups] == list(tasks)
    for group in groups:
        assert group.trajectories == group.sampled
        assert group.interventions == ()
        assert [trajectory.member for trajectory in group.sampled] == [0, 1, 2]
        for trajectory in group.sampled:
            first = derive_seed(7, 5, group.task.id, trajectory.member, "rollout", 0)
            assert trajectory.reward == float(first % 2)
    rewards = {trajectory.reward for group in groups for trajectory in group.sampled}
    assert rewards == {0.0, 1.0}
    expected = [
        derive_seed(7, 5, task.id, member, "rollout", turn)
        for turn in range(3)
        for task in tasks
        for member in range(3)
    ]
    assert [request.seed for request in engine.generate_requests] == expected
    assert world.started == 12


def test_purpose_iteration_and_seed_change_the_draws():
    def seeds(iteration: int, purpose: str, seed: int) -> set[int]:
        engine = ScriptedEngine(odd_succeeds, RENDERER)
        world = GuessWorld()
        collector(world, engine, seed=seed).collect(world.tasks("train"), 2, iteration, purpose=purpose)
        return {request.seed for request in engine.generate_requests}

    drawn = [seeds(1, "rollout", 0), seeds(2, "rollout", 0), seeds(1, "evaluation", 0), seeds(1, "rollout", 1)]
    assert sum(len(part) for part in drawn) == len(set().union(*drawn))


def test_temperature_of_the_settings_or_of_the_call():
    world = GuessWorld()
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    collector(world, engine).collect(world.tasks("train")[:1], 1, 1)
    collector(world, engine).collect(world.tasks("train")[:1], 1, 1, temperature=0.0)
    assert [request.sampling.temperature for request in engine.generate_requests] == [1.0] * 3 + [0.0] * 3


class CountingRenderer(TokenRenderer):
    openings = 0

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        self.openings += 1
        return super().opening(messages, tools)


def test_the_opening_is_rendered_once_per_task():
    world = GuessWorld()
    renderer = CountingRenderer(tiny_tokenizer())
    collector(world, renderer=renderer).collect(world.tasks("train"), 5, 1)
    assert renderer.openings == 4


class ChattyWorld(GuessWorld):
    """Every episode greets differently."""

    def start(self, task):
        episode = super().start(task)
        return ChattyEpisode(task, self, number=self.started) if self.started > 1 else episode


class ChattyEpisode(GuessEpisode):
    def __init__(self, task, world, *, number):
        super().__init__(task, world)
        self.number = number

    @property
    def messages(self):
        return (Message(role="user", content=f"box {self.task.payload['box']}"),) * self.number


def test_differing_openings_are_each_rendered():
    world = ChattyWorld()
    group = collector(world).collect(world.tasks("train")[:1], 3, 1)[0]
    opening = RENDERER.opening([Message(role="user", content="box a")], ())
    lengths = [len(opening) + k * (len(opening) - 2) for k in range(3)]
    assert [len(trajectory.prompt_ids(0)) for trajectory in group.sampled] == lengths


def test_a_repeated_task_draws_differently():
    world = GuessWorld()
    task = world.tasks("train")[0]
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    groups = collector(world, engine).collect([task, task], 4, 1)
    assert len(groups) == 2
    first_turn = [request.seed for request in engine.generate_requests[:8]]
    assert len(set(first_turn)) == 8
    assert first_turn[0] == derive_seed(0, 1, task.id, 0, "rollout", 0)


def test_corrections_of_one_step_draw_differently():
    world = GuessWorld()
    task = world.tasks("train")[0]
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    continuing = collector(world, engine)
    episodes = [
        LiveEpisode(task, 0, world.start(task), continuing.rules, fork=Fork(parent=0, step=0, intervention_id=name))
        for name in ("a", "b")
    ]
    continuing.run(episodes, iteration=3, purpose="continue")
    assert [request.seed for request in engine.generate_requests[:2]] == [
        derive_seed(0, 3, task.id, 0, "continue", 0, name) for name in ("a", "b")
    ]


def test_a_broken_episode_leaves_the_others():
    world = GuessWorld(break_start=True)
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    groups = collector(world, engine).collect(world.tasks("train")[:2], 2, 1)
    for trajectory in (t for group in groups for t in group.sampled):
        assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
        assert math.isnan(trajectory.reward)
        assert (trajectory.turns, trajectory.error) == ((), "the box is gone")
    assert engine.generate_requests == []

    class HalfBroken(GuessWorld):
        def start(self, task):
            self.break_start = self.started % 2 == 0
            return super().start(task)

    group = collector(HalfBroken()).collect(world.tasks("train")[:1], 4, 1)[0]
    assert [trajectory.valid for trajectory in group.sampled] == [False, True, False, True]
    assert [trajectory.member for trajectory in group.sampled] == [0, 1, 2, 3]


def test_an_engine_that_stays_down_ends_the_rollout():
    world = GuessWorld()
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    engine.available = False
    with pytest.raises(EngineUnavailable):
        collector(world, engine).collect(world.tasks("train"), 2, 1)


class RecordingEngine(LocalEngine):
    """Keeps its requests and completions."""

    def __init__(self) -> None:
        super().__init__(tiny_model(sharpen=5.0), max_batch=256, cache_rows=256, prefill_tokens=4096)
        self.calls: list[tuple[GenerateRequest, Completion]] = []

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        completions = super().generate(requests)
        self.calls += zip(requests, completions, strict=True)
        return completions


def test_trajectories_hold_exactly_the_ids_of_the_engine():
    world = GuessWorld(max_turns=3)
    engine = RecordingEngine()
    tasks = world.tasks("train")
    groups = collector(world, engine).collect(tasks, 4, 1)
    by_seed = {request.seed: (request, completion) for request, completion in engine.calls}
    turns = 0
    for group in groups:
        for trajectory in group.sampled:
            for step, turn in enumerate(trajectory.turns):
                seed = derive_seed(0, 1, group.task.id, trajectory.member, "rollout", step)
                request, completion = by_seed[seed]
                assert trajectory.prompt_ids(step) == request.prompt_ids
                assert turn.action_ids == completion.token_ids
                assert turn.action_log_probs == completion.log_probs
                turns += 1
    assert turns == len(engine.calls) == len(by_seed)


def test_draws_of_an_episode_do_not_depend_on_the_others():
    world = GuessWorld()
    tasks = world.tasks("train")
    together = collector(world, RecordingEngine()).collect(tasks, 3, 1)
    alone = collector(world, RecordingEngine()).collect(tasks[2:3], 2, 1)[0]
    for left, right in zip(alone.sampled, together[2].sampled[:2], strict=True):
        assert [turn.action_ids for turn in left.turns] == [turn.action_ids for turn in right.turns]
        assert left.reward == right.reward


def test_importance_weights_of_a_completion_stay_with_its_turn():
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    generate = engine.generate

    def weighing(requests):
        return [
            dataclasses.replace(completion, importance_weights=(0.5,) * len(completion.token_ids))
            for completion in generate(requests)
        ]

    engine.generate = weighing
    world = GuessWorld()
    [group] = collector(world, engine).collect(world.tasks("train")[:1], 2, 0)
    turns = [turn for trajectory in group.sampled for turn in trajectory.turns]
    assert turns
    assert all(turn.importance_weights == (0.5,) * len(turn.action_ids) for turn in turns)
