"""Policies with chat templates, from rollout to loss: what was sampled is what is trained."""

from __future__ import annotations

import pytest

from rti_exp.config.chat_settings import ChatSettings, History
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import Scope
from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.experiment.parts import default_engine
from rti_exp.models.load import load
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.collector import Collector
from rti_exp.rollout.live_episode import EpisodeRules, LiveEpisode
from rti_exp.rollout.renderer import renderer_for
from rti_exp.training.batch import micro_batches
from rti_exp.training.samples import group_samples
from rti_exp.types import Author, Group, Status
from tests.support.chat_fakes import chat_tokenizer, save_chat_policy
from tests.support.echo_world import SETTINGS, TASKS, EchoEpisode, EchoWorld, check_log_probs, corrected

CHATS = {
    "append": default_settings(ChatSettings, thinking=False, stop_tokens=["<|endoftext|>"]),
    "thinking": default_settings(ChatSettings, thinking=True),
    "template": default_settings(ChatSettings, history=History.template, thinking=False),
}


@pytest.fixture(scope="module", params=["qwen3", "smollm2", "gpt2"])
def policy(request, tmp_path_factory):
    """(engine, tokenizer) of a saved policy with a hostile generation_config; pad is eos in smollm2's."""
    name = "smollm2" if request.param == "smollm2" else "qwen3"
    folder = save_chat_policy(tmp_path_factory.mktemp("policy"), name, gpt2=request.param == "gpt2")
    loaded = load(folder, "float32", given="policy.path")
    return default_engine(model=loaded.model), loaded.tokenizer


@pytest.mark.parametrize("chat", CHATS)
def test_trained_ids_and_log_probs_are_the_sampled_ones(policy, chat):
    engine, tokenizer = policy
    settings = CHATS[chat]
    renderer = renderer_for(tokenizer, settings, setting="policy.path")
    asked: list[GenerateRequest] = []
    generate = engine.generate

    def recording(requests):
        asked.extend(requests)
        return generate(requests)

    engine.generate = recording
    try:
        collector = Collector(environment=EchoWorld(), engine=engine, renderer=renderer, settings=SETTINGS, seed=0)
        groups = collector.collect(TASKS, 4, 1)
        children = [corrected(engine, collector, group.sampled[0], group.task) for group in groups]
    finally:
        engine.generate = generate
    prompts = {request.prompt_ids for request in asked}
    assert all(request.sampling.temperature == 0.7 for request in asked)
    cuts = 0
    for group, child in zip(groups, children, strict=True):
        trajectories = (child, *group.sampled[1:])
        for one in trajectories:
            assert one.status is Status.OK
            assert len(one.turns) == 4
            cuts += sum(turn.new_segment for turn in one.turns)
            for step, turn in enumerate(one.turns):
                if turn.author is Author.POLICY:
                    assert one.prompt_ids(step) in prompts
        merged = Group(task=group.task, sampled=group.sampled, trajectories=trajectories)
        samples = group_samples(merged, [1.0] * 4, Scope.all)
        actions = [tuple(i for turn in one.turns for i in turn.action_ids) for one in trajectories]
        for sample, ids in zip(samples, actions, strict=True):
            assert sample is not None
            assert tuple(i for i, kept in zip(sample.token_ids, sample.loss_mask, strict=True) if kept) == ids
        check_log_probs(engine, [sample for sample in samples if sample is not None])
    # Of the templates' own renderings some do not extend: Qwen3's leaves out empty thoughts, and the text of ids that
    # a random model says may have other ids.
    assert (cuts > 0) is (chat == "template")


def test_a_batch_of_ragged_rows_equals_one_by_one(policy):
    engine, tokenizer = policy
    renderer = ChatRenderer(tokenizer)
    prompts = [renderer.opening(EchoEpisode(task).messages, ()) for task in TASKS]
    sampling = Sampling(temperature=0.9, max_tokens=12, stop_ids=renderer.stop_ids)
    requests = [GenerateRequest(prompt_ids=ids, sampling=sampling, seed=seed) for seed in range(3) for ids in prompts]
    together = engine.generate(requests)
    for request, batched in zip(requests, together, strict=True):
        [alone] = default_engine(model=engine.model, max_batch=1, cache_rows=1).generate([request])
        assert alone.token_ids == batched.token_ids
        assert alone.log_probs == pytest.approx(batched.log_probs, abs=2e-4)


def test_thinking_that_the_template_drops_begins_a_new_segment():
    renderer = ChatRenderer(
        chat_tokenizer("qwen3"), default_settings(ChatSettings, history=History.template, thinking=True)
    )
    rules = EpisodeRules(renderer=renderer, settings=SETTINGS, max_turns=5)
    episode = LiveEpisode(TASKS[0], 0, EchoEpisode(TASKS[0]), rules)
    action_ids = renderer.action_ids("<think>\nhm\n</think>\n\n27")
    for _ in range(3):
        episode.take_turn(action_ids, (-1.0,) * len(action_ids), Author.POLICY)
    # After turn 0 a tool answers and the thought stays; after turn 1 the user does, and both thoughts go.
    assert episode.turns[1].new_segment is False
    assert episode.turns[2].new_segment is True
    second, third = (renderer.text(episode.turns[step].context_ids) for step in (1, 2))
    assert second.startswith("\n<|im_start|>user\n<tool_response>")
    assert third.startswith("<|im_start|>system\n")
    assert "hm" not in third
    assert third.count("<|im_start|>assistant\n27<|im_end|>") == 2
    episode.take_turn(action_ids, (-1.0,) * len(action_ids), Author.POLICY)
    trajectory = episode.finish()
    assert trajectory.prompt_ids(2) == episode.turns[2].context_ids
    assert trajectory.prompt_ids(3) == episode.turns[2].context_ids + action_ids + episode.turns[3].context_ids
    [sample] = group_samples(Group(task=TASKS[0], sampled=(trajectory,), trajectories=(trajectory,)), [1.0], Scope.all)
    assert sample is not None
    first = sum(len(turn.context_ids) + len(turn.action_ids) for turn in episode.turns[:2])
    assert sample.segment_starts == (0, first)
    [batch] = micro_batches([sample], max_tokens=5000, total_trained_tokens=4 * len(action_ids))
    rows = sorted(batch.lengths_B.tolist())
    assert rows == sorted([first, len(sample.token_ids) - first])
    assert int(batch.loss_mask_BT.sum()) == 4 * len(action_ids)


def test_history_auto_appends_unless_the_template_moves_things():
    assert not ChatRenderer(chat_tokenizer("qwen3")).rerenders
    assert not ChatRenderer(chat_tokenizer("smollm2")).rerenders
    moving = (
        "{% for m in messages %}{% if m.role == 'system' %}{% else %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last %}{{ messages[0].content }} {% endif %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{{ '<|im_start|>assistant\n' }}"
    )
    assert ChatRenderer(chat_tokenizer("smollm2", moving)).rerenders
