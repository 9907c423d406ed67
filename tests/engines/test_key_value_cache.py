import torch

from rti_exp.engines.key_value_cache import SlotCache


def filled_cache() -> SlotCache:
    """Two slots of four positions, one layer, one head of width 1; slot s holds 10 s + position at each position."""
    cache = SlotCache(1)
    cache.reserve(2, 4)
    values = torch.tensor([[0.0, 1, 2, 3], [10, 11, 12, 13]])[:, None, :, None]
    cache.point(torch.arange(2), torch.arange(4).expand(2, -1), 4)
    cache.update(values, -values, 0)
    return cache


def contents(cache: SlotCache) -> list[list[float]]:
    keys, values = cache._slot_layers[0].tensors()
    assert torch.equal(keys, -values)
    return keys[:, :, 0, 0].tolist()


def test_writes_to_places_and_returns_the_first_positions():
    cache = filled_cache()
    cache.point(torch.tensor([1, 0]), torch.tensor([[2], [1]]), 3)
    keys, values = cache.update(torch.tensor([[[[7.0]]], [[[8.0]]]]), torch.tensor([[[[-7.0]]], [[[-8.0]]]]), 0)
    assert keys[:, 0, :, 0].tolist() == [[10, 11, 7], [0, 8, 2]]
    assert torch.equal(values, -keys)
    assert contents(cache) == [[0, 8, 2, 3], [10, 11, 7, 13]]


def test_copy():
    cache = filled_cache()
    cache.copy([0], [1], 3)
    assert contents(cache) == [[0, 1, 2, 3], [0, 1, 2, 13]]


def test_growing_keeps_what_is_stored():
    cache = filled_cache()
    cache.reserve(3, 5)
    assert contents(cache) == [[0, 1, 2, 3, 0], [10, 11, 12, 13, 0], [0, 0, 0, 0, 0]]
    cache.reserve(1, 1)
    assert (cache.slot_count, cache.length) == (3, 5)
