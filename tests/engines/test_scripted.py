import pytest

from rti_exp.engines.base import EngineUnavailable, GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.scripted import ScriptedEngine
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Message
from tests.support.fakes import tiny_tokenizer

RENDERER = TokenRenderer(tiny_tokenizer())


def ask(text: str, *, seed: int = 0, max_tokens: int = 64) -> GenerateRequest:
    return GenerateRequest(
        prompt_ids=RENDERER.opening([Message(role="user", content=text)], ()),
        sampling=Sampling(max_tokens=max_tokens, stop_ids=RENDERER.stop_ids),
        seed=seed,
    )


def test_table_takes_the_longest_key_that_the_prompt_ends_with():
    engine = ScriptedEngine({"a<|end|>": "one", "box a<|end|>": "two"}, RENDERER)
    completion = engine.generate([ask("box a")])[0]
    assert completion.token_ids == RENDERER.action_ids("two")
    assert completion.stop_reason == "stop"
    assert completion.log_probs == (-0.5,) * len(completion.token_ids)


def test_a_prompt_without_answer_is_an_error():
    with pytest.raises(KeyError, match="box b"):
        ScriptedEngine({"a<|end|>": "one"}, RENDERER).generate([ask("box b")])


def test_function_sees_prompt_and_seed_and_answers_are_cut():
    engine = ScriptedEngine(lambda prompt, seed: f"{prompt[-14:-13]} {seed}", RENDERER)
    whole, cut = engine.generate([ask("box a", seed=12345), ask("box a", seed=12345, max_tokens=2)])
    assert RENDERER.text(whole.token_ids).endswith("12345<|end|>")
    assert cut.token_ids == whole.token_ids[:2]
    assert cut.stop_reason == "length"


def test_counters_requests_and_versions():
    engine = ScriptedEngine(lambda prompt, seed: "27", RENDERER, log_probs=lambda prompt, ids: [-float(i) for i in ids])
    engine.sync(3)
    completion = engine.generate([ask("box a")])[0]
    assert engine.score([ScoreRequest(prompt_ids=(1,), token_ids=(4, 5))]) == [(-4.0, -5.0)]
    assert (engine.generated_tokens, engine.scored_tokens) == (len(completion.token_ids), 2)
    assert completion.policy_version == 3
    assert (engine.synced, len(engine.generate_requests), len(engine.score_requests)) == ([3], 1, 1)


def test_switched_off():
    engine = ScriptedEngine(lambda prompt, seed: "27", RENDERER)
    engine.available = False
    with pytest.raises(EngineUnavailable):
        engine.generate([ask("box a")])
    with pytest.raises(EngineUnavailable):
        engine.score([])
