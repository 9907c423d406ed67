import math
import sys

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import RolloutSettings
from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.rollout.environment_calls import environment_call
from rti_exp.rollout.live_episode import EpisodeRules, LiveEpisode
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Author, Fork, Message, Status, Trajectory
from tests.support.fakes import GuessWorld, call, right_texts, tiny_tokenizer, wrong_texts

RENDERER = TokenRenderer(tiny_tokenizer())
SETTINGS = default_settings(RolloutSettings, max_tokens=32, max_context=256)


def start(world: GuessWorld | None = None, *, settings: RolloutSettings = SETTINGS) -> LiveEpisode:
    world = world or GuessWorld()
    task = world.tasks("train")[0]
    rules = EpisodeRules(renderer=RENDERER, settings=settings, max_turns=world.max_turns)
    return LiveEpisode(task, 0, world.start(task), rules)


def take(live: LiveEpisode, text: str, *, author: Author = Author.POLICY) -> tuple[int, ...]:
    ids = RENDERER.action_ids(text)
    live.take_turn(ids, [-0.25] * len(ids), author)
    return ids


def play(live: LiveEpisode, texts: tuple[str, ...]) -> Trajectory:
    for text in texts:
        take(live, text)
    return live.finish()


def test_a_successful_episode():
    world = GuessWorld()
    task = world.tasks("train")[0]
    trajectory = play(start(world), right_texts(task))
    assert (trajectory.status, trajectory.reward) == (Status.OK, 1.0)
    assert trajectory.reward_parts == {"key": 1.0, "code": 1.0}
    assert [turn.observations[0].content for turn in trajectory.turns[:2]] == ["took red", "code 27"]
    assert trajectory.turns[2].observations == ()
    assert all(turn.author is Author.POLICY for turn in trajectory.turns)
    assert trajectory.turns[0].action_log_probs == (-0.25,) * len(trajectory.turns[0].action_ids)
    assert (trajectory.task_id, trajectory.member, trajectory.error) == (task.id, 0, None)


def test_ids_are_only_appended():
    live = start()
    prompts = []
    for text in right_texts(live.task):
        prompts.append(live.prompt_ids)
        take(live, text)
    trajectory = live.finish()
    assert [trajectory.prompt_ids(step) for step in range(3)] == prompts
    spelled = RENDERER.text(prompts[2])
    assert spelled == (
        '<|bos|><|user|>box a<|end|><|assistant|>{"name": "take", "arguments": {"key": "red"}}<|end|>'
        '<|tool|>took red<|end|><|assistant|>{"name": "open", "arguments": {}}<|end|>'
        "<|tool|>code 27<|end|><|assistant|>"
    )


def test_the_state_hash_precedes_the_step():
    world = GuessWorld()
    task = world.tasks("train")[0]
    mirror = world.start(task)
    expected = []
    trajectory = play(start(world), right_texts(task))
    for turn in trajectory.turns:
        expected.append(mirror.state_hash())
        mirror.step(turn.message)
    assert [turn.state_hash for turn in trajectory.turns] == expected
    assert len(set(expected)) == 3


def test_malformed_calls_go_to_the_environment():
    live = start()
    take(live, '{"name": "take"')
    assert live.turns[0].observations[0].content.startswith("error: The tool call is not valid JSON")
    assert not live.finished


def test_exceeding_max_turns_truncates_with_reward_zero():
    world = GuessWorld(max_turns=2)
    trajectory = play(start(world), right_texts(world.tasks("train")[0])[:2])
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == (Status.TRUNCATED, 0.0, 2)
    assert trajectory.valid


def test_ending_on_the_last_turn_is_not_truncation():
    world = GuessWorld(max_turns=3)
    assert play(start(world), right_texts(world.tasks("train")[0])).status is Status.OK


def test_exceeding_the_context_truncates():
    live = start()
    first = len(live.prompt_ids)
    take(live, call("open"))
    second = len(live.prompt_ids)
    exact = start(settings=default_settings(RolloutSettings, max_tokens=32, max_context=second))
    assert exact.request(0, temperature=1.0).sampling.max_tokens == min(32, second - first)
    take(exact, call("open"))
    assert exact.finished
    assert exact.finish().status is Status.TRUNCATED
    roomier = start(settings=default_settings(RolloutSettings, max_tokens=32, max_context=second + 1))
    take(roomier, call("open"))
    assert not roomier.finished
    assert roomier.request(0, temperature=1.0).sampling.max_tokens == 1


def test_an_opening_beyond_the_context_is_an_error():
    live = start(settings=default_settings(RolloutSettings, max_context=2))
    trajectory = live.finish()
    assert (trajectory.status, trajectory.turns, trajectory.reward) == (Status.TRUNCATED, (), 0.0)
    assert trajectory.error == (
        f"no turn was taken: the opening has {len(live.prompt_ids)} tokens, rollout.max_context is 2"
    )


def test_a_turn_that_was_cut_off_is_executed_and_closed_in_the_next_context():
    live = start()
    cut = RENDERER.action_ids(call("take", key="red"))[:-1]
    live.take_turn(cut, [-1.0] * len(cut), Author.POLICY)
    assert live.turns[0].observations[0].content == "took red"
    assert live.turns[0].action_ids == cut
    assert live.context.ids == (2, *RENDERER.appended(live.turns[0].observations, closed=True))


def test_request_carries_the_settings():
    live = start(settings=default_settings(RolloutSettings, temperature=0.5, top_p=0.9, max_tokens=7))
    request = live.request(99, temperature=0.25)
    assert request.prompt_ids == live.prompt_ids
    assert request.seed == 99
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.max_tokens) == (0.25, 0.9, 7)
    assert request.sampling.stop_ids == (2,)


@pytest.mark.parametrize(
    ("error", "text"),
    [(InfrastructureError("the box is gone"), "the box is gone"), (ValueError("boom"), "ValueError: boom")],
)
def test_a_failing_environment_is_not_a_failure_of_the_policy(error, text):
    world = GuessWorld(break_at=1, error=error)
    trajectory = play(start(world), right_texts(world.tasks("train")[0])[:2])
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
    assert math.isnan(trajectory.reward)
    assert trajectory.error == text
    assert len(trajectory.turns) == 1
    assert not trajectory.valid


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (StepResult(observations=(), done=True, reward=math.nan), "reward nan"),
        (StepResult(observations=(), done=True, reward=-1e300), "reward -1e+300"),
        (StepResult(observations=(), done=True, reward=None), "reward None"),  # pyright: ignore[reportArgumentType]
        (StepResult(observations=(), done=True, reward="1.0"), "reward '1.0'"),  # pyright: ignore[reportArgumentType]
        (StepResult(observations=(), done=True, reward=torch.ones(1)), "reward tensor([1.])"),  # pyright: ignore[reportArgumentType]
        (None, "step gave None"),
        (StepResult(observations=(Message(role="tool", content=7),), done=False), "not text"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_invalid_results_are_infrastructure_failures(result, text):
    live = start()
    live.episode.step = lambda message: result
    take(live, "hello")
    trajectory = live.finish()
    assert trajectory.status is Status.INFRASTRUCTURE_FAILURE
    assert text in (trajectory.error or "")


def test_an_environment_that_ends_the_process_is_an_infrastructure_failure():
    with pytest.raises(InfrastructureError, match="SystemExit: 0"):
        environment_call(sys.exit, 0)


def test_interrupts_pass_through_environment_calls():
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environment_call(interrupted)


def test_misuse_is_refused():
    live = start()
    with pytest.raises(RuntimeError, match="not finished"):
        live.finish()
    with pytest.raises(ValueError, match="2 action ids with 1 log-probs"):
        live.take_turn((9, 2), (-1.0,), Author.POLICY)
    take(live, "hello")
    with pytest.raises(RuntimeError, match="is finished"):
        take(live, "hello")


def resumed(world: GuessWorld, parent: Trajectory, step: int) -> LiveEpisode:
    task = world.tasks("train")[0]
    return LiveEpisode(
        task,
        parent.member,
        world.start(task).fork([turn.message for turn in parent.turns[:step]]),
        EpisodeRules(renderer=RENDERER, settings=SETTINGS, max_turns=world.max_turns),
        turns=parent.turns[:step],
        fork=Fork(parent=parent.member, step=step, intervention_id="i1"),
        correction_weights=(1.0, 1.1),
    )


def test_a_corrected_episode_continues_from_the_fork():
    world = GuessWorld(max_turns=4)
    task = world.tasks("train")[0]
    parent = play(start(world), (call("open"), *wrong_texts(task)))
    assert parent.reward == 0.0
    live = resumed(world, parent, 1)
    assert live.prompt_ids == parent.prompt_ids(1)
    assert (live.step, live.seed_parts) == (1, ("i1",))
    corrected = take(live, call("take", key="red"), author=Author.CORRECTOR)
    assert live.prompt_ids == (
        *parent.prompt_ids(1),
        *corrected,
        *RENDERER.appended((Message(role="tool", content="took red"),), closed=True),
    )
    child = play(live, right_texts(task)[1:])
    assert (child.status, child.reward) == (Status.OK, 1.0)
    assert child.turns[0] is parent.turns[0]
    assert child.turns[1].state_hash == parent.turns[1].state_hash
    assert child.turns[1].context_ids == parent.turns[1].context_ids
    assert [turn.author for turn in child.turns] == [
        Author.POLICY,
        Author.CORRECTOR,
        Author.POLICY,
        Author.POLICY,
    ]
    assert child.fork == Fork(parent=0, step=1, intervention_id="i1")
    assert child.correction_weights == (1.0, 1.1)


def test_a_correction_of_the_first_turn_starts_from_the_opening():
    world = GuessWorld()
    task = world.tasks("train")[0]
    parent = play(start(world), wrong_texts(task))
    live = resumed(world, parent, 0)
    assert live.prompt_ids == parent.prompt_ids(0)
    assert play(live, right_texts(task)).reward == 1.0


def test_a_continuation_has_the_remaining_turns_only():
    world = GuessWorld(max_turns=3)
    task = world.tasks("train")[0]
    parent = play(start(world), (call("open"), call("open"), call("open")))
    live = resumed(world, parent, 2)
    take(live, call("take", key="red"), author=Author.CORRECTOR)
    child = live.finish()
    assert (child.status, child.reward, len(child.turns)) == (Status.TRUNCATED, 0.0, 3)
    assert task.id == child.task_id


def test_a_fork_after_a_cut_off_turn_closes_it():
    world = GuessWorld()
    live = start(world)
    cut = RENDERER.action_ids(call("take", key="red"))[:-1]
    live.take_turn(cut, [-1.0] * len(cut), Author.POLICY)
    parent = play(live, ("27",))
    assert resumed(world, parent, 1).prompt_ids == parent.prompt_ids(1)


def test_a_continuation_that_breaks_keeps_its_fork():
    world = GuessWorld()
    parent = play(start(world), wrong_texts(world.tasks("train")[0]))
    world.break_at = 1
    live = resumed(world, parent, 1)
    take(live, call("open"), author=Author.CORRECTOR)
    child = live.finish()
    assert child.status is Status.INFRASTRUCTURE_FAILURE
    assert child.fork == Fork(parent=0, step=1, intervention_id="i1")
    assert child.turns == parent.turns[:1]
