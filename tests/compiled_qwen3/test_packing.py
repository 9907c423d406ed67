"""Packing, by hand and on random rows."""

from __future__ import annotations

import random

import pytest

from rti_exp.compiled_qwen3.packing import pack


def test_a_common_beginning_is_stored_once() -> None:
    packing = pack([(5, 6, 7), (5, 6, 8, 9)])
    assert packing.token_ids_N.tolist() == [5, 6, 8, 9, 7]
    assert packing.positions_N.tolist() == [0, 1, 2, 3, 2]
    assert packing.tokens_P.tolist() == [0, 1, 2, 3, 0, 1, 4]
    assert packing.rows_R4.tolist() == [[0, 4, 0, 0], [4, 3, 2, 4]]
    assert packing.tokens_BT.tolist() == [[0, 1, 4, 0], [0, 1, 2, 3]]


def test_the_beginning_of_another_row_has_no_place() -> None:
    packing = pack([(5, 6), (5, 6, 8), (5, 6, 8), (9,)])
    assert packing.token_ids_N.tolist() == [5, 6, 8, 9]
    assert packing.tokens_P.tolist() == [0, 1, 2, 3]
    assert packing.tokens_BT.tolist() == [[0, 1, 0], [0, 1, 2], [0, 1, 2], [3, 0, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_every_token_attends_to_its_own_row(seed: int) -> None:
    draw = random.Random(seed)
    rows = [[draw.randrange(3) for _ in range(draw.randint(1, 40))] for _ in range(30)]
    packing = pack(rows)
    assert len(packing.token_ids_N) == len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})
    beginning: dict[int, list[int]] = {}
    """For each token the tokens that it attends to."""
    for place, length, shared, first in packing.rows_R4.tolist():
        placed = packing.tokens_P[place : place + length].tolist()
        assert placed[shared:] == list(range(first, first + length - shared))
        for position in range(shared, length):
            beginning[placed[position]] = placed[: position + 1]
    assert sorted(beginning) == list(range(len(packing.token_ids_N)))
    for row, tokens in zip(rows, packing.tokens_BT.tolist(), strict=True):
        assert packing.token_ids_N[tokens[: len(row)]].tolist() == row
        assert packing.positions_N[tokens[: len(row)]].tolist() == list(range(len(row)))
        for position in range(len(row)):
            assert beginning[tokens[position]] == tokens[: position + 1]
