import random

from rti_exp.engines.prefix_index import BLOCK, PrefixIndex, common_length


def filled(*contents: tuple[int, ...]) -> PrefixIndex:
    index = PrefixIndex()
    index.reserve(len(contents) + 1)
    for row, ids in zip(index.rows, contents, strict=False):
        index.store(row, ids)
    return index


def test_common_length():
    assert common_length((1, 2, 3), (1, 2, 4)) == 2
    assert common_length((1, 2), (1, 2, 4)) == 2
    assert common_length((), (1,)) == 0


def test_longest_prefers_the_row_that_the_prompt_extends():
    short, long = tuple(range(12)), tuple(range(15))
    index = filled((*range(10), 99, 98, 97), short, (*range(12), 50, 51))
    row, length = index.longest(long) or (None, 0)
    assert row is index.rows[1]
    assert length == 12


def test_longest_finds_a_part_of_a_row():
    index = filled(tuple(range(30)))
    assert index.longest((*range(20), 7, 7)) == (index.rows[0], 20)


def test_under_one_block_in_common_is_nothing():
    index = filled(tuple(range(BLOCK - 1)), (5,) * 20)
    assert index.longest(tuple(range(BLOCK - 1))) is None


def test_overwritten_rows_are_not_found():
    index = filled(tuple(range(20)))
    index.store(index.rows[0], tuple(range(100, 120)))
    assert index.longest(tuple(range(20))) is None
    assert index.longest(tuple(range(100, 120))) == (index.rows[0], 20)
    index.store(index.rows[0], ())
    assert index.longest(tuple(range(100, 120))) is None
    assert not index._holders


def test_least_used_takes_empty_rows_first_then_the_oldest():
    index = filled(tuple(range(10)), tuple(range(20)), tuple(range(30)))
    index.touch(index.rows[0])
    assert [row.slot for row in index.least_used(3, keep=set())] == [3, 1, 2]
    assert [row.slot for row in index.least_used(3, keep={index.rows[1]})] == [3, 2, 0]


def test_against_brute_force():
    """Whatever is found really is in common, and no row has a block more."""
    draw = random.Random(0)
    for _ in range(200):
        contents = [tuple(draw.randrange(2) for _ in range(draw.randrange(40))) for _ in range(8)]
        contents += [ids[: draw.randrange(40)] + (1,) * 5 for ids in contents]
        index = filled(*contents)
        prompt = draw.choice(contents) + tuple(draw.randrange(2) for _ in range(10))
        best = max(common_length(ids, prompt) for ids in contents)
        hit = index.longest(prompt)
        if hit is None:
            assert best < BLOCK
        else:
            assert hit[1] == common_length(hit[0].ids, prompt)
            assert best - hit[1] < BLOCK
