import torch

from rti_exp.engines.slots import SlotCache


def filled_cache() -> SlotCache:
    """Two slots of four positions, one layer, one head of width 1; slot s holds 10 s + position at each position."""
    cache = SlotCache(1)
    cache.reserve(2, 4)
    values = torch.tensor([[0.0, 1, 2, 3], [10, 11, 12, 13]])[:, None, :, None]
    cache.point(torch.arange(8), 4)
    cache.update(values, -values, 0)
    return cache


def contents(cache: SlotCache) -> list[list[float]]:
    keys, values = cache._slot_layers[0].tensors()
    assert torch.equal(keys, -values)
    return keys[:, :, 0, 0].tolist()


def test_writes_where_it_is_told_and_shows_the_first_positions():
    cache = filled_cache()
    cache.point(torch.tensor([1, 4 + 2]), 3)
    keys, values = cache.update(torch.tensor([[[[7.0]]], [[[8.0]]]]), torch.tensor([[[[-7.0]]], [[[-8.0]]]]), 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 7, 2], [10, 11, 8]]
    assert torch.equal(values, -keys)
    assert contents(cache) == [[0, 7, 2, 3], [10, 11, 8, 13]]


def test_works_on_any_slots():
    cache = filled_cache()
    cache.point(torch.tensor([4]), 2, torch.tensor([1]))
    keys, _ = cache.update(torch.tensor([[[[7.0]]]]), torch.tensor([[[[-7.0]]]]), 0)
    assert keys[:, 0, :, 0].tolist() == [[7, 11]]


def test_copy_and_swap():
    cache = filled_cache()
    cache.swap([0], [1], 2)
    assert contents(cache) == [[10, 11, 2, 3], [0, 1, 12, 13]]
    cache.copy([0], [1], 3)
    assert contents(cache) == [[10, 11, 2, 3], [10, 11, 2, 13]]


def test_growing_keeps_what_is_stored():
    cache = filled_cache()
    cache.reserve(3, 5)
    assert contents(cache) == [[0, 1, 2, 3, 0], [10, 11, 12, 13, 0], [0, 0, 0, 0, 0]]
    cache.reserve(1, 1)
    assert (cache.slot_count, cache.length) == (3, 5)
