"""The compiled steps give what the model gives, up to rounding, and are taken only where they do."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rti_exp.compiled_qwen3 import cache as flat_cache
from rti_exp.compiled_qwen3 import decode_loop as flat_decoding
from rti_exp.compiled_qwen3.cache import FlatCache
from rti_exp.compiled_qwen3.compilation import can_compile
from rti_exp.compiled_qwen3.decoder import FlatForward
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.engines.base import GenerateRequest, Sampling, ScoreRequest
from rti_exp.engines.forward import SlotForward
from rti_exp.engines.local import LocalEngine
from rti_exp.engines.sampling import Sampler
from rti_exp.models.adapters import add_lora
from tests.compiled_qwen3.test_straight import SIZES, assert_alike, qwen

if not can_compile():
    pytest.skip("Numba does not work here", allow_module_level=True)
from rti_exp.compiled_qwen3 import decode_kernels as kernels


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def answers(engine: LocalEngine, sampling: Sampling) -> list[Any]:
    """Of ragged prompts over three turns, some of them asked twice, and of scoring."""
    prompts = [tuple(range(3, 3 + length)) for length in (4, 9, 9, 17, 30, 41)]
    made: list[Any] = []
    for turn in range(3):
        requests = [
            GenerateRequest(prompt_ids=one, sampling=sampling, seed=turn + 7 * n) for n, one in enumerate(prompts)
        ]
        completions = engine.generate(requests)
        made.append([(one.token_ids, one.log_probs) for one in completions])
        prompts = [one + done.token_ids + (5, 6, 7) for one, done in zip(prompts, completions, strict=True)]
    made.append(engine.score([ScoreRequest(prompt_ids=one, token_ids=(9, 8, 7, 6)) for one in prompts]))
    return made


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=9, stop_ids=tuple(range(20, 45))),
        Sampling(max_tokens=9, temperature=0.0),
        Sampling(max_tokens=9, temperature=0.7, stop_ids=(1, 2, 3)),
        Sampling(max_tokens=9, top_p=0.6, stop_ids=tuple(range(20, 45))),
    ],
    ids=["stops", "greedy", "cooled", "nucleus"],
)
def test_it_gives_what_the_model_gives(heads: int, sampling: Sampling) -> None:
    model = qwen(num_key_value_heads=heads)
    engine, other = LocalEngine(model, prefill_tokens=23), LocalEngine(model, compiled=False)
    assert_alike(answers(engine, sampling), answers(other, sampling))
    assert isinstance(engine._forward, FlatForward)
    assert isinstance(other._forward, SlotForward)


def test_a_width_that_is_no_multiple_of_eight() -> None:
    model = qwen(head_dim=10, intermediate_size=83)
    sampling = Sampling(max_tokens=5)
    assert_alike(answers(LocalEngine(model), sampling), answers(LocalEngine(model, compiled=False), sampling))


def test_many_rows_are_padded_for_their_matmuls() -> None:
    """77 rows decode as 96, and as fewer when they end; prefill and scoring of 70 and more tokens too."""
    model = qwen()
    sampling = Sampling(max_tokens=6, stop_ids=tuple(range(20, 45)))
    engine, other = LocalEngine(model), LocalEngine(model, compiled=False)
    requests = [GenerateRequest(prompt_ids=(3, 4, n), sampling=sampling, seed=n) for n in range(77)]
    found, own = engine.generate(requests), other.generate(requests)
    assert [one.token_ids for one in found] == [one.token_ids for one in own]
    for one, expected in zip(found, own, strict=True):
        assert one.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    asked = [ScoreRequest(prompt_ids=(5, n), token_ids=tuple(range(3, 20))) for n in range(9)]
    for one, expected in zip(engine.score(asked), other.score(asked), strict=True):
        assert one == pytest.approx(expected, abs=1e-4)


def test_a_row_is_as_long_in_any_batch() -> None:
    """Limits of their own, and rows that leave early."""
    model = qwen()
    requests = [
        GenerateRequest(
            prompt_ids=tuple(range(3, 8 + n)),
            sampling=Sampling(max_tokens=1 + n, stop_ids=tuple(range(n, 12 + n))),
            seed=n,
        )
        for n in range(9)
    ]
    together, engine = LocalEngine(model).generate(requests), LocalEngine(model)
    assert {one.stop_reason for one in together} == {"stop", "length"}
    for request, completion in zip(requests, together, strict=True):
        engine.sync(1)
        (alone,) = engine.generate([request])
        assert (alone.token_ids, alone.stop_reason) == (completion.token_ids, completion.stop_reason)
        assert alone.log_probs == pytest.approx(completion.log_probs, abs=1e-4)


def test_more_threads_half_precision_and_other_models_do_without() -> None:
    model: Any = qwen()
    request = [ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))]
    engine = LocalEngine(model)
    found = engine.score(request)
    assert isinstance(engine._forward, FlatForward)
    torch.set_num_threads(2)
    assert engine.score(request)[0] == pytest.approx(found[0], abs=1e-5)
    assert isinstance(engine._forward, SlotForward)
    torch.set_num_threads(1)
    assert engine.score(request) == found
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.score(request)[0] == pytest.approx(found[0], abs=0.5)
    assert isinstance(engine._forward, SlotForward)
    assert isinstance(LocalEngine(qwen().to(torch.bfloat16))._forward, SlotForward)  # pyright: ignore
    assert isinstance(LocalEngine(LlamaForCausalLM(LlamaConfig(**{**SIZES, "head_dim": 8})))._forward, SlotForward)


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_decoding, "can_compile", lambda: False)
    assert isinstance(LocalEngine(qwen())._forward, SlotForward)


def test_a_difference_is_noticed() -> None:
    model: Any = qwen()
    block = model.model.layers[2].mlp
    own = block.forward
    block.forward = lambda hidden: own(hidden) * 1.001
    assert isinstance(LocalEngine(model)._forward, SlotForward)


def test_it_reads_the_weights_of_now_and_sees_what_the_model_is_made_of() -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model: Any = qwen()
    engine, sampling = LocalEngine(model), Sampling(max_tokens=4)
    before = answers(engine, sampling)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_norm.weight.mul_(3)
        model.model.layers[2].mlp.up_proj.weight.mul_(2)
    engine.sync(1)
    after = answers(engine, sampling)
    assert after != before
    assert_alike(after, answers(LocalEngine(model, compiled=False), sampling))
    add_lora(model, LoraSettings(rank=2), seed=0)
    engine.sync(2)
    assert_alike(answers(engine, sampling), after)
    assert isinstance(engine._forward, SlotForward)


def test_a_model_that_is_not_finite_is_told() -> None:
    for value in (math.nan, math.inf):
        model: Any = qwen()
        engine = LocalEngine(model)
        assert isinstance(engine._forward, FlatForward)
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight[3, 4] = value
        engine.sync(1)
        with pytest.raises(FloatingPointError, match="not finite"):
            engine.generate([GenerateRequest(prompt_ids=(3, 4, 5), sampling=Sampling(max_tokens=4), seed=0)])
        with pytest.raises(FloatingPointError, match="not finite"):
            engine.score([ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))])


def test_exponentials_by_hand() -> None:
    values = np.array([0, 1, -1, math.log(2), 80, -80, -88, -math.inf, 100, math.nan, 5], np.float32)
    kernels.exponentials(values, np.empty(11, np.int32), 10)
    expected = [1, math.e, 1 / math.e, 2, math.exp(80), math.exp(-80)]
    assert values[:6].tolist() == pytest.approx(expected, rel=3e-6)
    assert values[6:8].tolist() == [0, 0]
    assert values[8] == pytest.approx(math.exp(88), rel=1e-5)
    assert math.isnan(values[9])
    assert values[10] == 5  # beyond the count
    line = np.linspace(-85, 85, 2001).astype(np.float32)
    made = line.copy()
    kernels.exponentials(made, np.empty(len(line), np.int32), len(line))
    assert np.abs(made / np.exp(line.astype(np.float64)) - 1).max() < 4e-7


def test_norm_and_gate_by_hand() -> None:
    made = np.empty((1, 2), np.float32)
    kernels.norm(np.array([[3, 4]], np.float32), np.array([2, 10], np.float32), 0.0, made)
    rms = math.sqrt((9 + 16) / 2)
    assert made[0].tolist() == pytest.approx([6 / rms, 40 / rms], rel=1e-6)
    kernels.gate(*np.array([[[0, 2]], [[7, -3]]], np.float32), made, np.empty(2, np.int32))
    assert made[0].tolist() == pytest.approx([0, -3 * 2 / (1 + math.exp(-2))], rel=1e-6)


def test_attention_by_hand() -> None:
    """One head of width 2, two slots; the second sees its two positions, with scores 3 and 0 of its query."""
    cache = FlatCache(layers=1, key_heads=1, width=2)
    cache.make_room(2, 4, most_slots=2)
    keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
    keys[:], values[:] = np.nan, np.nan  # what lies beyond a token's position is not read
    ones, no_angle = np.ones(2, np.float32), np.zeros((64, 1), np.float32)
    root = math.sqrt(2)  # a norm makes (x, 0) (root 2, 0)
    queries = np.array([[[9, 0]], [[4, 0]], [[4, 0]]], np.float32)
    new_keys = np.array([[[5, 0]], [[7, 0]], [[0, 7]]], np.float32)
    new_values = np.array([[[1, 2]], [[10, 20]], [[30, 40]]], np.float32)
    where = np.array([0, 1, 1]), np.array([0, 0, 1]), keys, values
    kernels.store(queries, new_keys, new_values, ones, ones, no_angle + 1, no_angle, 0.0, *where)
    assert queries[1].tolist() == [pytest.approx([root, 0])]
    assert keys[1, 0, :, :2].tolist() == [pytest.approx([root, 0]), pytest.approx([0, root])]
    assert values[1, 0, :2].tolist() == [[10, 20], [30, 40]]
    made = np.empty((2, 1, 2), np.float32)
    kernels.attend(queries, np.array([2, 0]), 1.5, *where, np.empty(64, np.float32), np.empty(64, np.int32), made)
    share = math.exp(3) / (math.exp(3) + 1)
    assert made[0, 0].tolist() == pytest.approx(
        [10 * share + 30 * (1 - share), 20 * share + 40 * (1 - share)], rel=1e-6
    )
    assert made[1, 0].tolist() == pytest.approx([1, 2])


def test_a_head_is_turned_by_its_angle() -> None:
    """A quarter turn at position 1: (x1, x2) becomes (-x2, x1)."""
    cache = FlatCache(layers=1, key_heads=1, width=2)
    cache.make_room(1, 2, most_slots=1)
    queries, new_keys = np.array([[[1, 7]]], np.float32), np.array([[[1, -1]]], np.float32)
    cosine, sine = np.array([[1], [0]], np.float32), np.array([[0], [1]], np.float32)
    where = np.array([0]), np.array([1]), cache.keys[0].numpy(), cache.values[0].numpy()
    weight = np.array([1, 2], np.float32)
    kernels.store(queries, new_keys, np.zeros((1, 1, 2), np.float32), weight, weight, cosine, sine, 0.0, *where)
    assert queries[0].tolist() == [pytest.approx([-14 / 5, 1 / 5])]
    assert new_keys[0].tolist() == [pytest.approx([2, 1])]


def test_rows_are_copied_and_the_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_cache, "_SMALL_BYTES", 0)
    cache = FlatCache(layers=1, key_heads=1, width=2)
    cache.make_room(3, 3, most_slots=9)
    assert (cache.slot_count, cache.length) == (3, 48)
    keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
    for slot in range(3):
        keys[slot, 0, :, :3] = [[10 * slot, 10 * slot + 1, 10 * slot + 2]] * 2
        values[slot, 0, :3] = -keys[slot, 0, :, :3].T
    cache.copy([1, 1], [0, 2], 2)
    for asked, made in ((3, 48), (3, 48)), ((4, 48), (6, 48)), ((6, 96), (8, 96)), ((9, 144), (9, 144)):
        # Twice the slots that were used, up to the most.
        cache.make_room(asked[0], asked[1] - 1, most_slots=9)
        assert (cache.slot_count, cache.length) == made
        keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
        assert keys[:3, 0, 1, :3].tolist() == [[10, 11, 2], [10, 11, 12], [10, 11, 22]]
        assert values[:3, 0, :3].tolist() == (-keys[:3, 0, :, :3].transpose(0, 2, 1)).tolist()


def test_a_small_cache_has_many_slots_from_the_start_until_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 layers of 2 heads of 32: 2,048 bytes a position, 0.19 GiB for 1,024 slots of 96; of 14 heads over 1."""
    small, large = (FlatCache(layers=4, key_heads=heads, width=32) for heads in (2, 14))
    for cache in (small, large):
        cache.make_room(5, 70, most_slots=256)
    assert (small.slot_count, small.length) == (1024, 96)
    assert (large.slot_count, large.length) == (5, 96)
    small.make_room(7, 97, most_slots=256)
    assert (small.slot_count, small.length) == (1024, 144)
    small.values[3][4, 1, 95] = 3
    small.make_room(3, 600, most_slots=256)  # of 1,024 slots over 1 GiB: those that were asked for so far
    assert (small.slot_count, small.length) == (7, 624)
    assert small.values[3][4, 1, 95].tolist() == [3] * 32
    small.make_room(8, 600, most_slots=256)
    assert (small.slot_count, small.length) == (14, 624)


def test_tokens_beyond_the_cache_are_refused() -> None:
    forward = LocalEngine(qwen())._forward
    assert isinstance(forward, FlatForward)
    cache = forward.new_cache()
    cache.make_room(2, 3, most_slots=2)
    one, far = torch.tensor([1]), torch.tensor([cache.length])
    with torch.inference_mode():
        forward.next_logits(cache, one, one, far - 1, 0)
        for slot, position in ((one, far), (torch.tensor([cache.slot_count]), one)):
            with pytest.raises(IndexError, match="beyond the cache"):
                forward.next_logits(cache, one, slot, position, 0)


def test_memory_that_ran_out_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(qwen())
    expected = LocalEngine(qwen()).score([ScoreRequest(prompt_ids=tuple(range(3, 60)), token_ids=(5, 6))])
    real, left = np.empty, [1]

    def once(size: Any, dtype: Any) -> np.ndarray:
        if left.pop() if left else False:
            raise MemoryError
        return real(size, dtype)

    with monkeypatch.context() as patch:
        patch.setattr("rti_exp.compiled_qwen3.decoder.np.empty", once)
        with pytest.raises(MemoryError):
            engine.score([ScoreRequest(prompt_ids=tuple(range(3, 60)), token_ids=(5, 6))])
    assert engine.score([ScoreRequest(prompt_ids=tuple(range(3, 60)), token_ids=(5, 6))]) == expected


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), EOFError("Ran out of input")])
def test_compiled_code_that_cannot_be_kept_or_read_is_told_and_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fails(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("rti_exp.compiled_qwen3.compilation._failed", [])
    monkeypatch.setattr(kernels, "advance", fails)
    engine = LocalEngine(qwen())
    assert isinstance(engine._forward, SlotForward)
    assert [record.getMessage() for record in caplog.records] == [
        f"compiled code does not work here ({type(error).__name__}: {error}): torch's operations are taken instead"
    ]
    assert not can_compile()


def test_draws_are_those_of_the_sampler() -> None:
    """The same tokens from the same numbers, and the same log-probs; a token of probability 0 never."""
    draw = random.Random(0)
    rows, words = 50, 30
    logits = torch.randn(rows, words, generator=torch.Generator().manual_seed(1)) * 3
    logits[:, :3] = -math.inf
    samplings = [Sampling(max_tokens=2, temperature=draw.choice([0.0, 0.5, 1.0, 2.0])) for _ in range(rows)]
    seeds = list(range(rows))
    ids, log_probs = Sampler(samplings, seeds, torch.device("cpu"))(logits, 0, torch.arange(rows))
    made = advanced(logits.numpy(), [one.temperature for one in samplings], first_uniforms(seeds))
    assert made["ids"].tolist() == ids.tolist()
    assert made["log_probs"].tolist() == pytest.approx(log_probs.tolist(), abs=1e-5)
    lowest = advanced(logits.numpy(), [1.0] * rows, np.zeros(rows, np.float32))
    assert lowest["ids"].tolist() == [3] * rows
    highest = advanced(logits.numpy(), [1.0] * rows, np.full(rows, np.nextafter(np.float32(1), np.float32(0))))
    assert highest["ids"].min() >= 3


def first_uniforms(seeds: list[int]) -> np.ndarray:
    from rti_exp.engines.sampling import uniforms

    return uniforms(seeds, 1)[:, 0].numpy()


def advanced(logits: np.ndarray, temperatures: list[float], numbers: np.ndarray, **changes: Any) -> dict[str, Any]:
    rows, words = logits.shape
    state: dict[str, Any] = {
        "members": np.arange(rows),
        "stops": np.zeros((1, words), dtype=bool),
        "limits": np.full(rows, 2),
        "step": 0,
        "tokens": np.zeros(rows, np.int64),
        "positions": np.full(rows, 7),
        "running": np.ones(rows, dtype=bool),
        "counts": np.zeros(rows, np.int64),
        "ids": np.full(rows, -1),
        "log_probs": np.zeros(rows, np.float32),
        **changes,
    }
    state["left"] = kernels.advance(
        logits,
        numbers,
        np.array(temperatures, np.float32),
        state["members"],
        state["stops"],
        np.zeros(len(numbers), np.int64),
        *(state[name] for name in ("limits", "step", "tokens", "positions", "running", "counts", "ids", "log_probs")),
        np.empty(words, np.float32),
        np.empty(words, np.int32),
    )
    return state


def test_a_step_by_hand() -> None:
    """Members 2, 0 and 3 of four, words of probability 1/4 and 3/4: one goes on, one stops, one is full."""
    logits = np.log(np.array([[1, 3], [1, 3], [3, 1]], np.float32))
    stops = np.array([[False, True]])
    found = advanced(
        logits,
        [1.0] * 4,
        np.array([0.3, 0.9, 0.2, 0.7], np.float32),
        members=np.array([2, 0, 3]),
        stops=stops,
        limits=np.array([5, 5, 5, 4]),
        step=3,
        counts=np.array([3, 1, 3, 3]),
        ids=np.full(4, -1),
        log_probs=np.zeros(4, np.float32),
        tokens=np.zeros(3, np.int64),
        positions=np.array([10, 20, 30]),
        running=np.ones(3, dtype=bool),
    )
    assert found["ids"].tolist() == [1, -1, 0, 0]
    expected = [math.log(0.75), 0, math.log(0.25), math.log(0.75)]
    assert found["log_probs"].tolist() == pytest.approx(expected, abs=1e-6)
    assert found["tokens"].tolist() == [0, 1, 0]
    assert found["positions"].tolist() == [11, 21, 31]
    assert found["counts"].tolist() == [4, 1, 4, 4]
    assert found["running"].tolist() == [True, False, False]
    assert found["left"] == 1


def test_weights_that_change_while_another_way_is_taken() -> None:
    """Autocast, other dtypes, a sync amid them: what is computed is the weights of now, and no old ones are held."""
    model: Any = qwen(initializer_range=0.1)
    engine, request = LocalEngine(model), [ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))]
    first = engine.score(request)
    engine.sync(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.score(request) != first
    assert engine.score(request) == first
    model.to(torch.bfloat16)
    engine.sync(2)
    engine.score(request)
    forward = engine._flat
    assert forward is not None
    assert forward._layers == []
    model.to(torch.float32)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(2)
    found = engine.score(request)
    assert engine._forward is forward
    assert found[0] == pytest.approx(LocalEngine(model, compiled=False).score(request)[0], abs=1e-5)
    assert found != first


def test_a_model_of_mixed_types_and_another_default_type_do() -> None:
    mixed: Any = qwen()
    mixed.model.norm.to(torch.bfloat16)
    assert isinstance(LocalEngine(mixed)._forward, SlotForward)
    torch.set_default_dtype(torch.float64)
    try:
        engine = LocalEngine(qwen().float())
        assert isinstance(engine._forward, FlatForward)
        engine.score([ScoreRequest(prompt_ids=(3, 4), token_ids=(5, 6))])
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_engine_forgets_what_another_way_stored() -> None:
    model = qwen()
    engine = LocalEngine(model)
    request = GenerateRequest(prompt_ids=tuple(range(3, 40)), sampling=Sampling(max_tokens=6), seed=0)
    first = engine.generate([request])
    torch.set_num_threads(2)
    second = engine.generate([request])
    assert second[0].token_ids == first[0].token_ids
    assert engine.prefilled_tokens == 2 * 36
    torch.set_num_threads(1)
    assert engine.generate([request]) == first
