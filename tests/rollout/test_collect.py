import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rti_exp.config.settings import RolloutSettings
from rti_exp.engines.base import EngineUnavailable, GenerateRequest
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.randomness import derive_seed
from rti_exp.rollout.collect import Collector
from rti_exp.rollout.episode import EpisodeRun
from rti_exp.rollout.render import TokenRenderer
from rti_exp.types import Completion, Fork, Message, Status
from tests.support.fakes import GuessEpisode, GuessWorld, right_texts, tiny_model, tiny_tokenizer, wrong_texts

RENDERER = TokenRenderer(tiny_tokenizer())
SETTINGS = RolloutSettings(max_tokens=32, max_context=256)


def odd_succeeds(prompt: str, seed: int) -> str:
    """Plays the right episode if the seed of the first turn is odd, else the wrong one."""
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


def test_the_opening_is_rendered_once_a_task():
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


def test_openings_that_differ_are_each_rendered():
    world = ChattyWorld()
    group = collector(world).collect(world.tasks("train")[:1], 3, 1)[0]
    one = RENDERER.opening([Message(role="user", content="box a")], ())
    assert [len(t.prompt_ids(0)) for t in group.sampled] == [len(one) + k * (len(one) - 2) for k in range(3)]


def test_a_task_that_comes_twice_draws_apart():
    world = GuessWorld()
    task = world.tasks("train")[0]
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    groups = collector(world, engine).collect([task, task], 4, 1)
    assert len(groups) == 2
    first_turn = [request.seed for request in engine.generate_requests[:8]]
    assert len(set(first_turn)) == 8
    assert first_turn[0] == derive_seed(0, 1, task.id, 0, "rollout", 0)


def test_corrections_of_one_step_draw_apart():
    world = GuessWorld()
    task = world.tasks("train")[0]
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    runs = [
        EpisodeRun.resume(
            task,
            0,
            world.start(task),
            (),
            RENDERER,
            max_turns=4,
            settings=SETTINGS,
            fork=Fork(parent=0, step=0, intervention_id=name),
        )
        for name in ("a", "b")
    ]
    collector(world, engine).run(runs, iteration=3, purpose="continue")
    assert [request.seed for request in engine.generate_requests[:2]] == [
        derive_seed(0, 3, task.id, 0, "continue", 0, name) for name in ("a", "b")
    ]


def test_broken_episodes_cost_themselves_only():
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
    """Keeps what it saw and said."""

    def __init__(self) -> None:
        super().__init__(tiny_model(sharpen=5.0))
        self.seen: list[tuple[GenerateRequest, Completion]] = []

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        completions = super().generate(requests)
        self.seen += zip(requests, completions, strict=True)
        return completions


def test_trajectories_hold_exactly_what_the_engine_saw():
    world = GuessWorld(max_turns=3)
    engine = RecordingEngine()
    tasks = world.tasks("train")
    groups = collector(world, engine).collect(tasks, 4, 1)
    said = {request.seed: (request, completion) for request, completion in engine.seen}
    turns = 0
    for group in groups:
        for trajectory in group.sampled:
            for step, turn in enumerate(trajectory.turns):
                seed = derive_seed(0, 1, group.task.id, trajectory.member, "rollout", step)
                request, completion = said[seed]
                assert trajectory.prompt_ids(step) == request.prompt_ids
                assert turn.action_ids == completion.token_ids
                assert turn.action_log_probs == completion.log_probs
                turns += 1
    assert turns == len(engine.seen) == len(said)


def test_what_an_episode_draws_does_not_depend_on_the_others():
    world = GuessWorld()
    tasks = world.tasks("train")
    together = collector(world, RecordingEngine()).collect(tasks, 3, 1)
    alone = collector(world, RecordingEngine()).collect(tasks[2:3], 2, 1)[0]
    for one, other in zip(alone.sampled, together[2].sampled, strict=False):
        assert [turn.action_ids for turn in one.turns] == [turn.action_ids for turn in other.turns]
        assert one.reward == other.reward


def test_importance_weights_of_a_completion_stay_with_its_turn():
    engine = ScriptedEngine(odd_succeeds, RENDERER)
    generate = engine.generate

    def weighing(requests):
        made = generate(requests)
        return [dataclasses.replace(one, importance_weights=(0.5,) * len(one.token_ids)) for one in made]

    engine.generate = weighing
    world = GuessWorld()
    [group] = collector(world, engine).collect(world.tasks("train")[:1], 2, 0)
    turns = [turn for one in group.sampled for turn in one.turns]
    assert turns
    assert all(turn.importance_weights == (0.5,) * len(turn.action_ids) for turn in turns)
