"""The decode kernels and their cache against numbers worked out by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from rti_exp.compiled_qwen3 import decode_kernels as kernels
from rti_exp.compiled_qwen3 import slot_cache
from rti_exp.compiled_qwen3.slot_cache import KernelSlotCache
from rti_exp.engines.base import Sampling
from rti_exp.engines.sampling import Sampler, uniforms

F = np.float32


def test_exponentials() -> None:
    values = np.array([0, 1, -1, math.log(2), 80, -80, -88, -math.inf, 100, math.nan, 5], F)
    kernels.exponentials(values, np.empty(11, np.int32), 10)
    expected = [1, math.e, 1 / math.e, 2, math.exp(80), math.exp(-80)]
    assert values[:6].tolist() == pytest.approx(expected, rel=3e-6)
    assert values[6:8].tolist() == [0, 0]
    assert values[8] == pytest.approx(math.exp(88), rel=1e-5)
    assert math.isnan(values[9])
    assert values[10] == 5  # behind the count
    line = np.linspace(-85, 85, 2001).astype(F)
    powers = line.copy()
    kernels.exponentials(powers, np.empty(len(line), np.int32), len(line))
    assert np.abs(powers / np.exp(line.astype(np.float64)) - 1).max() < 4e-7


def test_norm_and_gate() -> None:
    output = np.empty((1, 2), F)
    kernels.norm(np.array([[3, 4]], F), np.array([2, 10], F), 0.0, output)
    rms = math.sqrt((9 + 16) / 2)
    assert output[0].tolist() == pytest.approx([6 / rms, 40 / rms], rel=1e-6)
    kernels.gate(*np.array([[[0, 2]], [[7, -3]]], F), output, np.empty(2, np.int32))
    assert output[0].tolist() == pytest.approx([0, -3 * 2 / (1 + math.exp(-2))], rel=1e-6)


def test_attention() -> None:
    """One head of width 2, two slots; the second has two positions, with scores 3 and 0 of its query."""
    cache = KernelSlotCache(layers=1, key_heads=1, width=2)
    cache.make_room(2, 4, most_slots=2)
    keys, values = stored = cache.keys[0].numpy(), cache.values[0].numpy()
    keys[:], values[:] = np.nan, np.nan  # what lies behind a token's position is not read
    ones, no_angle = np.ones(2, F), np.zeros((64, 1), F)
    root = math.sqrt(2)  # a norm turns (x, 0) into (root 2, 0)
    queries = np.array([[[9, 0]], [[4, 0]], [[4, 0]]], F)
    new_keys = np.array([[[5, 0]], [[7, 0]], [[0, 7]]], F)
    new_values = np.array([[[1, 2]], [[10, 20]], [[30, 40]]], F)
    places = np.array([0, 1, 1]), np.array([0, 0, 1])
    kernels.store(queries, new_keys, new_values, (ones, ones), (no_angle + 1, no_angle), 0.0, places, stored)
    assert queries[1].tolist() == [pytest.approx([root, 0])]
    assert keys[1, 0, :, :2].tolist() == [pytest.approx([root, 0]), pytest.approx([0, root])]
    assert values[1, 0, :2].tolist() == [[10, 20], [30, 40]]
    output, scratch = np.empty((2, 1, 2), F), (np.empty(64, F), np.empty(64, np.int32))
    kernels.attend(queries, np.array([2, 0]), 1.5, places, stored, scratch, output)
    share = math.exp(3) / (math.exp(3) + 1)
    expected = [10 * share + 30 * (1 - share), 20 * share + 40 * (1 - share)]
    assert output[0, 0].tolist() == pytest.approx(expected, rel=1e-6)
    assert output[1, 0].tolist() == pytest.approx([1, 2])


def test_rotation() -> None:
    """A quarter turn at position 1: (x1, x2) becomes (-x2, x1)."""
    cache = KernelSlotCache(layers=1, key_heads=1, width=2)
    cache.make_room(1, 2, most_slots=1)
    queries, new_keys = np.array([[[1, 7]]], F), np.array([[[1, -1]]], F)
    angles = np.array([[1], [0]], F), np.array([[0], [1]], F)
    stored, weight = (cache.keys[0].numpy(), cache.values[0].numpy()), np.array([1, 2], F)
    places = np.array([0]), np.array([1])
    kernels.store(queries, new_keys, np.zeros((1, 1, 2), F), (weight, weight), angles, 0.0, places, stored)
    assert queries[0].tolist() == [pytest.approx([-14 / 5, 1 / 5])]
    assert new_keys[0].tolist() == [pytest.approx([2, 1])]


def test_rows_are_copied_and_the_cache_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_cache, "_SMALL_BYTES", 0)
    cache = KernelSlotCache(layers=1, key_heads=1, width=2)
    cache.make_room(3, 3, most_slots=9)
    assert (cache.slot_count, cache.length) == (3, 48)
    keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
    for slot in range(3):
        keys[slot, 0, :, :3] = [[10 * slot, 10 * slot + 1, 10 * slot + 2]] * 2
        values[slot, 0, :3] = -keys[slot, 0, :, :3].T
    cache.copy([1, 1], [0, 2], 2)
    for requested, size in ((3, 48), (3, 48)), ((4, 48), (6, 48)), ((6, 96), (8, 96)), ((9, 144), (9, 144)):
        # Twice the slots that were used, up to the most.
        cache.make_room(requested[0], requested[1] - 1, most_slots=9)
        assert (cache.slot_count, cache.length) == size
        keys, values = cache.keys[0].numpy(), cache.values[0].numpy()
        assert keys[:3, 0, 1, :3].tolist() == [[10, 11, 2], [10, 11, 12], [10, 11, 22]]
        assert values[:3, 0, :3].tolist() == (-keys[:3, 0, :, :3].transpose(0, 2, 1)).tolist()


def test_a_small_cache_has_many_slots_until_it_is_large() -> None:
    """4 layers of 2 heads of 32: 2,048 bytes a position, 0.19 GiB for 1,024 slots of 96; of 14 heads over 1."""
    small, large = (KernelSlotCache(layers=4, key_heads=heads, width=32) for heads in (2, 14))
    for cache in (small, large):
        cache.make_room(5, 70, most_slots=256)
    assert (small.slot_count, small.length) == (1024, 96)
    assert (large.slot_count, large.length) == (5, 96)
    small.make_room(7, 97, most_slots=256)
    assert (small.slot_count, small.length) == (1024, 144)
    small.values[3][4, 1, 95] = 3
    small.make_room(3, 600, most_slots=256)  # 1,024 slots would take over 1 GiB: as many as were requested so far
    assert (small.slot_count, small.length) == (7, 624)
    assert small.values[3][4, 1, 95].tolist() == [3] * 32
    small.make_room(8, 600, most_slots=256)
    assert (small.slot_count, small.length) == (14, 624)


def advance(
    logits: np.ndarray, rows: kernels.Rows, sampling: kernels.Sampling, *, step: int = 0, counts: Any = None
) -> tuple[int, kernels.Outputs]:
    members, words = sampling.stops_MV.shape
    counts = np.zeros(members, np.int64) if counts is None else counts
    outputs = kernels.Outputs(np.full(members, -1), np.zeros(members, F), counts)
    left = kernels.advance(logits, step, rows, sampling, outputs, (np.empty(words, F), np.empty(words, np.int32)))
    return left, outputs


def test_tokens_are_sampled_as_by_the_sampler() -> None:
    """The same tokens from the same numbers, and the same log-probs; a token of probability 0 never."""
    draw, count, words = random.Random(0), 50, 30
    logits = torch.randn(count, words, generator=torch.Generator().manual_seed(1)) * 3
    logits[:, :3] = -math.inf
    samplings = [Sampling(max_tokens=2, temperature=draw.choice([0.0, 0.5, 1.0, 2.0])) for _ in range(count)]
    seeds = list(range(count))
    ids, log_probs = Sampler(samplings, seeds, torch.device("cpu"))(logits, 0, torch.arange(count))

    def sampled(numbers: np.ndarray, temperatures: list[float]) -> kernels.Outputs:
        zeros = np.zeros(count, np.int64)
        rows = kernels.Rows(np.arange(count), zeros, zeros.copy(), np.ones(count, dtype=bool))
        stops = np.zeros((count, words), dtype=bool)
        sampling = kernels.Sampling(numbers, np.array(temperatures, F), np.full(count, 2), stops)
        return advance(logits.numpy(), rows, sampling)[1]

    outputs = sampled(uniforms(seeds, 1)[:, 0].numpy(), [sampling.temperature for sampling in samplings])
    assert outputs.ids_M.tolist() == ids.tolist()
    assert outputs.log_probs_M.tolist() == pytest.approx(log_probs.tolist(), abs=1e-5)
    ones = [1.0] * count
    assert sampled(np.zeros(count, F), ones).ids_M.tolist() == [3] * count
    assert sampled(np.full(count, np.nextafter(F(1), F(0))), ones).ids_M.min() >= 3


def test_a_step() -> None:
    """Members 2, 0 and 3 of four, words of probability 1/4 and 3/4: one continues, one stops, one is full."""
    logits = np.log(np.array([[1, 3], [1, 3], [3, 1]], F))
    rows = kernels.Rows(np.array([2, 0, 3]), np.zeros(3, np.int64), np.array([10, 20, 30]), np.ones(3, dtype=bool))
    sampling = kernels.Sampling(
        np.array([0.3, 0.9, 0.2, 0.7], F),
        np.ones(4, F),
        np.array([5, 5, 5, 4]),
        np.array([[False, True]] * 4),
    )
    left, outputs = advance(logits, rows, sampling, step=3, counts=np.array([3, 1, 3, 3]))
    assert outputs.ids_M.tolist() == [1, -1, 0, 0]
    expected = [math.log(0.75), 0, math.log(0.25), math.log(0.75)]
    assert outputs.log_probs_M.tolist() == pytest.approx(expected, abs=1e-6)
    assert outputs.counts_M.tolist() == [4, 1, 4, 4]
    assert rows.tokens_B.tolist() == [0, 1, 0]
    assert rows.positions_B.tolist() == [11, 21, 31]
    assert rows.running_B.tolist() == [True, False, False]
    assert left == 1
