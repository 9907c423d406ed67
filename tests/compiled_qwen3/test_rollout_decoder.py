"""The local engine gives by compiled code what it gives by transformers, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rti_exp.compiled_qwen3 import fast_path
from rti_exp.config.defaults import default_settings
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.engines.base import GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.compiled_forward import CompiledForward
from rti_exp.engines.local import LocalEngine
from rti_exp.experiment.parts import default_engine
from rti_exp.models.adapters import add_lora
from rti_exp.types import Completion
from tests.support.qwen3 import random_qwen3


def is_compiled(engine: LocalEngine) -> bool:
    """In its last call."""
    return isinstance(engine._forward, CompiledForward)


def assert_alike(completions: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [one.token_ids for one in completions] == [one.token_ids for one in expected]
    for completion, other in zip(completions, expected, strict=True):
        assert completion.log_probs == pytest.approx(other.log_probs, abs=1e-4)


def assert_engines_agree(engine: LocalEngine, other: LocalEngine, sampling: Sampling) -> tuple[Sequence[float], ...]:
    """On ragged prompts over three turns, some of them requested twice, and on scores, which it returns."""
    prompts = [tuple(range(3, 3 + length)) for length in (4, 9, 9, 17, 30, 41)]
    for turn in range(3):
        requests = [
            GenerateRequest(prompt_ids=prompt, sampling=sampling, seed=turn + 7 * n) for n, prompt in enumerate(prompts)
        ]
        completions = engine.generate(requests)
        assert_alike(completions, other.generate(requests))
        prompts = [
            prompt + completion.token_ids + (5, 6, 7) for prompt, completion in zip(prompts, completions, strict=True)
        ]
    scored = [ScoreRequest(prompt_ids=prompt, token_ids=(9, 8, 7, 6)) for prompt in prompts]
    scores = engine.score(scored)
    assert scores == [pytest.approx(row, abs=1e-4) for row in other.score(scored)]
    return tuple(scores)


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=9, stop_ids=tuple(range(20, 45))),
        Sampling(max_tokens=9, temperature=0.0),
        Sampling(max_tokens=9, temperature=0.7, stop_ids=(1, 2, 3)),
        Sampling(max_tokens=9, top_p=0.6, stop_ids=tuple(range(20, 45))),
    ],
    ids=["stops", "greedy", "low temperature", "nucleus"],
)
def test_generation_and_scores_are_the_models(heads: int, sampling: Sampling) -> None:
    model = random_qwen3(num_key_value_heads=heads)
    engine, other = default_engine(model, prefill_tokens=23), default_engine(model, compiled=False)
    assert_engines_agree(engine, other, sampling)
    assert is_compiled(engine)
    assert not is_compiled(other)


def test_widths_that_are_not_a_multiple_of_eight() -> None:
    model = random_qwen3(head_dim=10, intermediate_size=83)
    engine = default_engine(model)
    assert_engines_agree(engine, default_engine(model, compiled=False), Sampling(max_tokens=5))
    assert is_compiled(engine)


def test_many_rows_are_padded_for_their_matmuls() -> None:
    """77 rows decode as 96, and as fewer when some end; prefill and scoring of 70 and more tokens too."""
    model = random_qwen3()
    sampling = Sampling(max_tokens=6, stop_ids=tuple(range(20, 45)))
    engine, other = default_engine(model), default_engine(model, compiled=False)
    requests = [GenerateRequest(prompt_ids=(3, 4, n), sampling=sampling, seed=n) for n in range(77)]
    assert_alike(engine.generate(requests), other.generate(requests))
    scored = [ScoreRequest(prompt_ids=(5, n), token_ids=tuple(range(3, 20))) for n in range(9)]
    for scores, expected in zip(engine.score(scored), other.score(scored), strict=True):
        assert scores == pytest.approx(expected, abs=1e-4)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """Different limits, and rows that leave early."""
    model = random_qwen3()
    requests = [
        GenerateRequest(
            prompt_ids=tuple(range(3, 8 + n)),
            sampling=Sampling(max_tokens=1 + n, stop_ids=tuple(range(n, 12 + n))),
            seed=n,
        )
        for n in range(9)
    ]
    together, engine = default_engine(model).generate(requests), default_engine(model)
    assert {completion.stop_reason for completion in together} == {"stop", "length"}
    for request, completion in zip(requests, together, strict=True):
        engine.sync(1)
        (alone,) = engine.generate([request])
        assert alone.stop_reason == completion.stop_reason
        assert_alike([alone], [completion])


def test_other_arithmetic_is_computed_by_the_model_and_cached_apart() -> None:
    """Threads, autocast and dtype may change between calls; keys and values of another arithmetic are dropped."""
    model = random_qwen3(initializer_range=0.1)
    engine = default_engine(model)
    request = [ScoreRequest(prompt_ids=tuple(range(3, 40)), token_ids=(5, 6))]
    first = engine.score(request)
    assert is_compiled(engine)
    torch.set_num_threads(2)
    assert engine.score(request)[0] == pytest.approx(first[0], abs=1e-5)
    assert not is_compiled(engine)
    assert engine.prefilled_tokens == 2 * 38
    torch.set_num_threads(1)
    assert engine.score(request) == first
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.score(request)[0] == pytest.approx(first[0], abs=0.5)
        assert engine.score(request) != first
    assert not is_compiled(engine)
    model.to(torch.bfloat16)
    engine.sync(1)
    assert engine.score(request) != first
    assert not is_compiled(engine)
    model.to(torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(2)
    engine.sync(2)
    scores = engine.score(request)
    assert is_compiled(engine)
    assert scores[0] == pytest.approx(default_engine(model, compiled=False).score(request)[0], abs=1e-5)
    assert scores != first


def test_changed_weights_and_modules_are_seen() -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = random_qwen3()
    engine, sampling = default_engine(model), Sampling(max_tokens=4)
    before = assert_engines_agree(engine, default_engine(model, compiled=False), sampling)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_norm.weight.mul_(3)
        model.model.layers[2].mlp.up_proj.weight.data.mul_(2)  # which autograd does not see
    engine.sync(1)
    after = assert_engines_agree(engine, default_engine(model, compiled=False), sampling)
    assert after != before
    assert is_compiled(engine)
    add_lora(model, default_settings(LoraSettings, rank=2), seed=0)
    engine.sync(2)
    adapted = assert_engines_agree(engine, default_engine(model, compiled=False), sampling)
    assert adapted == tuple(pytest.approx(row, abs=1e-4) for row in after)
    assert not is_compiled(engine)


def test_hooks_that_are_added_later_are_called() -> None:
    model = random_qwen3()
    engine, request = default_engine(model), [ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))]
    plain = engine.score(request)
    for module in (model.model.layers[2].mlp, model):
        calls: list[object] = []
        handle = module.register_forward_pre_hook(lambda owner, _inputs, calls=calls: calls.append(owner))
        engine.sync(1)
        engine.score(request)
        assert calls == [module]
        handle.remove()
    engine.sync(2)
    assert engine.score(request) == plain
    assert is_compiled(engine)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_is_not_finite_is_an_error(value: float) -> None:
    model = random_qwen3()
    engine = default_engine(model)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3, 4] = value
    engine.sync(1)
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.generate([GenerateRequest(prompt_ids=(3, 4, 5), sampling=Sampling(max_tokens=4), seed=0)])
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.score([ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))])
    assert is_compiled(engine)


def test_tokens_outside_the_cache_are_refused() -> None:
    path = fast_path(random_qwen3())
    assert path is not None
    cache = path.rollout.new_cache()
    cache.make_room(2, 3, most_slots=2)
    one, far = torch.tensor([1]), torch.tensor([cache.length])
    with torch.inference_mode():
        path.rollout.next_logits(cache, one, one, far - 1)
        for slot, position in ((one, far), (torch.tensor([cache.slot_count]), one)):
            with pytest.raises(IndexError, match="outside the cache"):
                path.rollout.next_logits(cache, one, slot, position)


def test_a_call_after_one_that_ran_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_qwen3()
    engine, request = default_engine(model), [ScoreRequest(prompt_ids=(3, 4) * 80, token_ids=(5, 6))]
    expected, allocate, left = default_engine(model).score(request), np.empty, [1]

    def fail_once(size: Any, dtype: Any) -> np.ndarray:
        if left and left.pop():
            raise MemoryError
        return allocate(size, dtype)

    with monkeypatch.context() as patch:
        patch.setattr("rti_exp.compiled_qwen3.rollout_decoder.np.empty", fail_once)
        with pytest.raises(MemoryError):
            engine.score(request)
    assert engine.score(request) == expected
