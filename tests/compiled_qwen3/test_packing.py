"""Packing, by hand."""

from __future__ import annotations

import random

import pytest

from rti_exp.compiled_qwen3 import packing as packing_module
from rti_exp.compiled_qwen3.packing import Packing, pack


def test_a_common_beginning_is_one() -> None:
    made = pack([(5, 6, 7), (5, 6, 8, 9)])
    assert made.token_ids_N.tolist() == [5, 6, 8, 9, 7]
    assert made.positions_N.tolist() == [0, 1, 2, 3, 2]
    assert made.chunks == ((2, 4),)
    assert made.tokens_P.tolist() == [0, 1, 2, 3, 0, 1, 4, 0]
    assert made.own_places_N.tolist() == [0, 1, 2, 3, 6]
    assert made.shared_places_S.tolist() == [4, 5]
    assert made.shared_tokens_S.tolist() == [0, 1]
    assert made.rows_R4.tolist() == [[0, 4, 0, 0], [4, 3, 2, 4]]
    assert made.tokens_BT.tolist() == [[0, 1, 4, 0], [0, 1, 2, 3]]
    assert not made.in_place


def test_a_row_within_another_one_needs_no_place() -> None:
    made = pack([(5, 6), (5, 6, 8), (5, 6, 8), (9,)])
    assert made.token_ids_N.tolist() == [5, 6, 8, 9]
    assert made.chunks == ((2, 3),)
    assert made.tokens_BT.tolist() == [[0, 1, 0], [0, 1, 2], [0, 1, 2], [3, 0, 0]]
    assert made.shared_places_S.tolist() == []


def test_different_rows_of_a_length_are_in_place() -> None:
    made = pack([(5, 6), (7, 6), (4, 6)])
    assert made.in_place
    assert made.tokens_P.tolist() == made.own_places_N.tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_of_other_lengths_are_another_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "_PADDING", 2)
    made = pack([[row] * length for row, length in enumerate((5, 4, 4, 3, 1))])
    # 5 4 4 waste two places; with 3 they would waste four. 3 and 1 waste two.
    assert made.chunks == ((3, 5), (2, 3))
    assert made.places == 21


def starts_of(made: Packing) -> list[int]:
    """The first place of each row of places."""
    found, start = [], 0
    for rows, length in made.chunks:
        found += range(start, start + rows * length, length)
        start += rows * length
    return found


@pytest.mark.parametrize("seed", range(20))
def test_every_token_looks_at_its_own_row(seed: int) -> None:
    draw = random.Random(seed)
    rows = [[draw.randrange(3) for _ in range(draw.randint(1, 40))] for _ in range(30)]
    made = pack(rows)
    assert len(made.token_ids_N) == len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})
    starts = starts_of(made)
    for row, tokens in zip(rows, made.tokens_BT.tolist(), strict=True):
        assert made.token_ids_N[tokens[: len(row)]].tolist() == row
        assert made.positions_N[tokens[: len(row)]].tolist() == list(range(len(row)))
        for position, token in enumerate(tokens[: len(row)]):
            place = int(made.own_places_N[token])
            start = max(first for first in starts if first <= place)
            assert place - start == position
            # What the token sees in its place are the row's tokens up to it.
            assert made.tokens_P[start : place + 1].tolist() == tokens[: position + 1]
    for start, length, known, first in made.rows_R4.tolist():
        assert start in starts
        own = made.tokens_P[start + known : start + length].tolist()
        assert own == list(range(first, first + length - known))
        assert made.own_places_N[own].tolist() == list(range(start + known, start + length))
    assert len(made.rows_R4) == len(starts)
    filled = sorted(made.own_places_N.tolist() + made.shared_places_S.tolist())
    assert len(filled) == len(set(filled))
    assert made.tokens_P[made.shared_places_S].tolist() == made.shared_tokens_S.tolist()
