"""The local engine against plain full forward passes of the same model."""

import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from rti_exp.engines.base import GenerateRequest, RequestsFailed, Sampling, ScoreRequest
from rti_exp.engines.compiled_forward import CompiledForward
from rti_exp.engines.failed_requests import generate_each, score_each
from rti_exp.experiment.parts import default_engine
from rti_exp.types import Failure, FailureKind
from tests.support.fakes import tiny_gpt2, tiny_model
from tests.support.local_engine import (
    MODELS,
    STOPS,
    VOCABULARY,
    conversation_calls,
    fingerprint,
    full_log_probs,
    ids,
    requests_for,
)


@pytest.mark.parametrize("name", MODELS)
def test_log_probs_are_those_of_a_full_forward_pass(name):
    model = MODELS[name]()
    engine = default_engine(model)
    history = conversation_calls(engine, seed=1)
    for request, completion in history:
        expected = full_log_probs(model, request.prompt_ids, completion.token_ids)
        assert completion.log_probs == pytest.approx(expected, abs=1e-5)
    draw = random.Random(2)
    scored = [
        ScoreRequest(prompt_ids=request.prompt_ids, token_ids=completion.token_ids + ids(draw, 0, 5))
        for request, completion in history
    ]
    for request, log_probs in zip(scored, engine.score(scored), strict=True):
        assert log_probs == pytest.approx(full_log_probs(model, request.prompt_ids, request.token_ids), abs=1e-5)
    fed = sum(len(request.prompt_ids) for request, _ in history)
    assert engine.prefilled_tokens < fed  # although the scored texts are in it


@pytest.mark.parametrize("name", MODELS)
def test_the_models_would_show_an_attention_error(name):
    """Another token far back, or positions shifted by one, moves the log-probs far beyond the tolerance."""
    model = MODELS[name]()
    draw = random.Random(0)
    prompt, tokens = ids(draw, 30, 30), ids(draw, 8, 8)
    base = torch.tensor(full_log_probs(model, prompt, tokens))
    other = torch.tensor(full_log_probs(model, (prompt[0], (prompt[1] + 1) % VOCABULARY, *prompt[2:]), tokens))
    fewer = torch.tensor(full_log_probs(model, prompt[1:], tokens))
    assert (base - other).abs().max() > 1e-3
    assert (base - fewer).abs().max() > 1e-3


def test_only_what_is_new_is_prefilled():
    engine = default_engine(tiny_model())
    sampling = Sampling(max_tokens=4)
    prompt = tuple(range(20, 40))
    first = engine.generate([GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=s) for s in range(6)])
    assert engine.prefilled_tokens == 19  # once for the six; the last token is the first decode step's
    nexts = [prompt + completion.token_ids + (7, 8, 9) for completion in first]
    engine.generate([GenerateRequest(prompt_ids=ids, sampling=sampling, seed=1) for ids in nexts])
    assert engine.prefilled_tokens == 19 + 6 * 3  # the fourth sampled token, and two of the three new ones
    roles = [(*ids[:22], 11, 12, 13) for ids in nexts]
    engine.score([ScoreRequest(prompt_ids=ids, token_ids=(14, 15)) for ids in roles])
    assert engine.prefilled_tokens == 19 + 6 * 3 + 6 * 4  # 11, 12, 13 and 14
    engine.generate([GenerateRequest(prompt_ids=ids, sampling=sampling, seed=1) for ids in nexts])
    assert engine.prefilled_tokens == 19 + 6 * 3 + 6 * 4  # the rows that the roles' were copied from are still there
    engine.sync(1)
    engine.generate([GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=0)])
    assert engine.prefilled_tokens == 19 + 6 * 3 + 6 * 4 + 19


def test_counters_count_what_was_asked():
    engine = default_engine(tiny_model())
    completions = engine.generate(requests_for(random.Random(0), [(1, 9), (1, 9), (3,)]))
    assert engine.generated_tokens == sum(len(completion.token_ids) for completion in completions)
    request = ScoreRequest(prompt_ids=(1, 9), token_ids=(4, 5))
    assert engine.score([request, ScoreRequest(prompt_ids=(1,), token_ids=()), request])[1] == ()
    assert engine.scored_tokens == 4
    assert engine.generate([]) == []
    assert engine.score([]) == []


def test_stops_at_the_first_stop_id_and_at_max_tokens():
    model = tiny_model()
    engine = default_engine(model)
    history = conversation_calls(engine, seed=3)
    reasons = set()
    for request, completion in history:
        sampled = completion.token_ids
        stopped = [token in STOPS for token in sampled]
        assert not any(stopped[:-1])
        assert completion.stop_reason == ("stop" if stopped[-1] else "length")
        assert len(sampled) == request.sampling.max_tokens or stopped[-1]
        assert len(completion.log_probs) == len(sampled)
        reasons.add(completion.stop_reason)
    assert reasons == {"stop", "length"}


def test_each_request_has_its_own_stop_ids():
    """Also once rows that stopped first have left the batch and others sit in their places."""
    engine = default_engine(tiny_model())
    free = engine.generate([GenerateRequest(prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=8), seed=5)])[0]
    assert len(set(free.token_ids)) == 8
    third, sixth = free.token_ids[2], free.token_ids[5]
    requests = [
        GenerateRequest(prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=8, stop_ids=stops), seed=5)
        for stops in ((third,), (), (third,), (10**6,), (sixth, 10**6))
    ]
    lengths = [len(completion.token_ids) for completion in engine.generate(requests)]
    assert lengths == [3, 8, 3, 8, 6]
    assert all(c.token_ids == free.token_ids[:n] for c, n in zip(engine.generate(requests), lengths, strict=True))


def test_greedy_takes_the_likeliest_and_returns_log_probs_at_temperature_one():
    model = tiny_model()
    prompt = (1, 50, 60, 70)
    sampling = Sampling(temperature=0.0, max_tokens=6)
    first, second = default_engine(model).generate(
        [GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=seed) for seed in (1, 2)]
    )
    assert first == second
    expected: list[int] = [*prompt]
    for _ in range(6):
        with torch.no_grad():
            expected.append(int(model(torch.tensor([expected])).logits[0, -1].argmax()))
    assert first.token_ids == tuple(expected[4:])
    assert first.log_probs == pytest.approx(full_log_probs(model, prompt, first.token_ids), abs=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("temperature", "top_p"), [(0.3, 1.0), (2.0, 1.0), (1.0, 0.5), (0.6, 0.7)])
def test_log_probs_are_those_of_the_distribution_that_sampled(temperature: float, top_p: float, compiled: bool):
    model, prompt = tiny_model(sharpen=3.0), (1, 50, 60)
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=6)
    engine = default_engine(model, compiled=compiled)
    [completion] = engine.generate([GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=4)])
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1].double()
    expected = []
    for logits_V, token in zip(logits_TV, completion.token_ids, strict=True):
        probabilities_V, order_V = (logits_V / temperature).softmax(0).sort(descending=True)
        kept_V = probabilities_V[: int((probabilities_V.cumsum(0) < top_p).sum()) + 1]
        expected.append(math.log(probabilities_V[order_V == token].item() / (kept_V.sum().item() if top_p < 1 else 1)))
    assert completion.log_probs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
def test_scores_are_at_the_temperature_of_the_request(compiled: bool):
    model, prompt, tokens = tiny_model(sharpen=3.0), (1, 50, 60), (7, 8)
    engine = default_engine(model, compiled=compiled)
    requests = [ScoreRequest(prompt_ids=prompt, token_ids=tokens, temperature=value) for value in (1.0, 0.5)]
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    for request, scores in zip(requests, engine.score(requests), strict=True):
        expected_TV = (logits_TV / request.temperature).log_softmax(dim=1)
        assert scores == pytest.approx([expected_TV[0, 7].item(), expected_TV[1, 8].item()], abs=1e-4)


def test_the_models_own_generation_config_is_not_read():
    model = tiny_model()
    requests = requests_for(random.Random(0), [(1, 9, 8)] * 4)
    before = default_engine(model).generate(requests)
    assert model.generation_config is not None
    model.generation_config.temperature = 0.01
    model.generation_config.top_k = 1
    model.generation_config.eos_token_id = before[0].token_ids[0]
    assert default_engine(model).generate(requests) == before


def test_frequencies_match_the_softmax():
    """First token, and second token given the first: exact expected frequencies, a fixed seed."""
    model = tiny_model(vocab_size=7, sharpen=8.0)
    engine = default_engine(model)
    count = 4000
    sampling = Sampling(max_tokens=2)
    completions = engine.generate(
        [GenerateRequest(prompt_ids=(1, 3, 5), sampling=sampling, seed=seed) for seed in range(count)]
    )
    with torch.no_grad():
        first = model(torch.tensor([[1, 3, 5]])).logits[0, -1].double().softmax(0)
        seconds = model(torch.tensor([[1, 3, 5, token] for token in range(7)])).logits[:, -1].double().softmax(1)
    expected = (first[:, None] * seconds).flatten() * count
    observed = torch.zeros(49, dtype=torch.double)
    for completion in completions:
        observed[completion.token_ids[0] * 7 + completion.token_ids[1]] += 1
    assert expected.min() > 5
    assert stats.chisquare(observed.numpy(), expected.numpy()).pvalue > 0.001


def test_neither_batch_nor_cache_changes_what_is_sampled():
    """Many requests, each once alone on a fresh engine, and once amid others on engines with a past."""
    model = tiny_model(sharpen=5.0)
    cases = 0
    for seed in range(6):
        engine = default_engine(model, cache_rows=random.Random(seed).choice([1, 8, 64]), max_batch=(7, 256)[seed % 2])
        for request, completion in conversation_calls(engine, seed):
            alone = default_engine(model).generate([request])[0]
            assert alone.token_ids == completion.token_ids
            assert alone.log_probs == pytest.approx(completion.log_probs, abs=1e-5)
            cases += 1
    assert cases > 250


@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_calls_give_the_same_bits_in_a_used_engine_and_in_another_process(compiled: bool) -> None:
    model = tiny_model(sharpen=5.0)
    expected = fingerprint(default_engine(model, compiled=compiled))
    used = default_engine(model, compiled=compiled)
    used.generate(requests_for(random.Random(0), [ids(random.Random(i), 90, 120) for i in range(200)], most=60))
    compiled = compiled and isinstance(used._forward, CompiledForward)
    # In small steps where all memory is filled; else many slots, which take memory once they are written to.
    assert (used._pool.cache.slot_count, used._pool.cache.length) == ((1024 if compiled else 224), 192)
    used.sync(1)
    assert fingerprint(used) == expected
    used.sync(2)
    assert fingerprint(used) == expected
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from rti_exp.experiment.parts import default_engine\n"
        "from tests.support.fakes import tiny_model\n"
        "from tests.support.local_engine import fingerprint\n"
        f"print(fingerprint(default_engine(tiny_model(sharpen=5.0), compiled={compiled})))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": str(torch.get_num_threads())}
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", script.replace("(1)", f"({torch.get_num_threads()})")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == expected


def test_sync_forgets_and_stamps():
    model, other = tiny_model(seed=0), tiny_model(seed=1)
    engine = default_engine(model)
    request = GenerateRequest(prompt_ids=tuple(range(9, 30)), sampling=Sampling(max_tokens=5), seed=0)
    assert engine.generate([request])[0].policy_version == 0
    model.load_state_dict(other.state_dict())
    engine.sync(4)
    completion = engine.generate([request])[0]
    assert completion.policy_version == 4
    assert completion == replace(default_engine(other).generate([request])[0], policy_version=4)


def test_modes_are_restored_and_dropout_is_off():
    model = tiny_gpt2()
    request = GenerateRequest(prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=5), seed=0)
    expected = default_engine(model).generate([request])[0]
    model.train()
    model.transformer.h[0].eval()
    before = [module.training for module in model.modules()]
    engine = default_engine(model)
    assert engine.generate([request])[0] == expected
    assert [module.training for module in model.modules()] == before
    with pytest.raises(RequestsFailed, match="positions"):
        engine.generate([GenerateRequest(prompt_ids=(1,) * 510, sampling=Sampling(max_tokens=3), seed=0)])
    assert [module.training for module in model.modules()] == before


def test_the_model_can_be_trained_after_a_call():
    model = tiny_model()
    engine = default_engine(model)
    engine.generate(requests_for(random.Random(0), [(1, 2, 3)] * 2))
    engine.score([ScoreRequest(prompt_ids=(1, 2), token_ids=(3, 4))])
    model(input_ids=torch.tensor([[1, 2, 3, 4]])).logits.logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_log_probs_that_are_not_finite_are_an_error_and_leave_nothing_behind():
    """A short row after the error sees, hidden by the mask, what a long one left in its slot: no NaN may be there."""
    model = tiny_model()
    engine = default_engine(model)
    sampling = Sampling(max_tokens=5)
    long = [GenerateRequest(prompt_ids=(start, *range(9, 30)), sampling=sampling, seed=0) for start in (50, 51)]
    mixed = [long[0], GenerateRequest(prompt_ids=(7, 8), sampling=sampling, seed=0)]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = default_engine(model).generate(mixed)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.down_proj.weight").fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.generate(long)
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.score([ScoreRequest(prompt_ids=(1, 2), token_ids=(3,))])
    model.load_state_dict(weights)
    assert engine.generate(mixed) == expected


def test_senseless_requests_are_refused():
    engine = default_engine(tiny_model())
    with pytest.raises(ValueError, match="at least one token"):
        engine.generate([GenerateRequest(prompt_ids=(), sampling=Sampling(), seed=0)])
    with pytest.raises(ValueError, match="max_tokens"):
        engine.generate([GenerateRequest(prompt_ids=(1,), sampling=Sampling(max_tokens=0), seed=0)])
    with pytest.raises(ValueError, match="at least one token"):
        engine.score([ScoreRequest(prompt_ids=(), token_ids=(1,))])


def test_requests_that_are_too_long_are_named_and_the_others_can_be_done():
    model = tiny_model()
    model.config.max_position_embeddings = 512
    engine = default_engine(model)
    sampling = Sampling(max_tokens=3)
    long = GenerateRequest(prompt_ids=(1,) * 510, sampling=sampling, seed=0)
    short = GenerateRequest(prompt_ids=(1, 7), sampling=sampling, seed=0)
    reason = "510 + 3 tokens exceed the model's 512 positions"
    with pytest.raises(RequestsFailed) as caught:
        engine.generate([short, long, short, long])
    too_many = Failure(kind=FailureKind.TOO_LONG, reason=reason)
    assert caught.value.failures == {1: too_many, 3: too_many}
    assert engine.generated_tokens == 0
    [expected] = engine.generate([short])
    assert generate_each(engine, [short, long]) == [expected, too_many]
    assert generate_each(engine, [long]) == [too_many]
    scored = ScoreRequest(prompt_ids=(1, 7), token_ids=(8, 9))
    too_long = ScoreRequest(prompt_ids=(1,) * 510, token_ids=(7, 8, 9))
    [log_probs] = engine.score([scored])
    assert score_each(engine, [too_long, scored]) == [too_many, log_probs]


def test_models_that_cannot_be_run_row_by_row_are_refused():
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ValueError, match="sliding"):
        default_engine(model)
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2"):
        default_engine(model)
