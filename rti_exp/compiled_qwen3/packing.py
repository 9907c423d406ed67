"""Rows of token ids as one list of distinct tokens: no padding, and a shared beginning of rows is stored once.

A causal model gives equal tokens after equal tokens the same state. The members of a group therefore share the states
of their prompt, and of whatever else they begin with in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """N distinct tokens, and P places: the tokens of each row that attention works on, row after row.

    Example: the rows (5, 6, 7) and (5, 6, 8, 9), longest first, are the tokens 5 6 8 9 7 at the positions 0 1 2 3 2.
    The places hold the tokens 0 1 2 3 and 0 1 4. A row that is the beginning of another one has no places.
    """

    token_ids_N: Tensor
    positions_N: Tensor
    tokens_P: Tensor
    """The token at each place."""
    rows_R4: Tensor
    """For each row with places: its first place, its length, the number of its leading tokens that belong to other
    rows, and the first of its own tokens. A row's own tokens are consecutive."""
    tokens_BT: Tensor
    """The token of each given row at each position; 0 behind the row's end."""


def pack(rows: Sequence[Sequence[int]]) -> Packing:
    """The packing of rows of token ids, each with at least one token."""
    arrays = [np.asarray(row) for row in rows]
    tokens, shared = _distinct(arrays)
    placed = [row for row in range(len(rows)) if shared[row] < len(arrays[row])]
    placed.sort(key=lambda row: (-len(arrays[row]), row))
    count = sum(len(arrays[row]) - shared[row] for row in placed)
    numbers = np.zeros(count, dtype=np.int64)
    """Number by `_distinct` -> number in the packing, in which a row's own tokens are consecutive."""
    token_ids_N, positions_N = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    rows_R4: list[tuple[int, int, int, int]] = []
    place = token = 0
    for row in placed:
        length, start = len(arrays[row]), shared[row]
        own = slice(token, token + length - start)
        numbers[tokens[row][start:]] = np.arange(own.start, own.stop)
        token_ids_N[own] = arrays[row][start:]
        positions_N[own] = np.arange(start, length)
        rows_R4.append((place, length, start, token))
        place, token = place + length, own.stop
    tokens_BT = np.zeros((len(rows), max(map(len, arrays))), dtype=np.int64)
    for row, row_tokens in enumerate(tokens):
        tokens_BT[row, : len(row_tokens)] = numbers[row_tokens]
    return Packing(
        token_ids_N=torch.from_numpy(token_ids_N),
        positions_N=torch.from_numpy(positions_N),
        tokens_P=torch.from_numpy(numbers[np.concatenate([tokens[row] for row in placed])]),
        rows_R4=torch.tensor(rows_R4),
        tokens_BT=torch.from_numpy(tokens_BT),
    )


def _distinct(rows: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The numbers of each row's tokens, and how many leading tokens each row shares with an earlier one.

    Rows are taken in descending order of their ids: what a row shares with any earlier row, it shares with the last.
    """
    order = sorted(range(len(rows)), key=lambda row: rows[row].tolist(), reverse=True)
    tokens: dict[int, np.ndarray] = {}
    shared = [0] * len(rows)
    count, last = 0, None
    for row in order:
        if last is not None:
            overlap = min(len(rows[row]), len(rows[last]))
            differing = np.flatnonzero(rows[row][:overlap] != rows[last][:overlap])
            shared[row] = int(differing[0]) if len(differing) else overlap
        own = len(rows[row]) - shared[row]
        beginning = tokens[last][: shared[row]] if last is not None else np.zeros(0, dtype=np.int64)
        tokens[row] = np.concatenate([beginning, np.arange(count, count + own)])
        count, last = count + own, row
    return [tokens[row] for row in range(len(rows))], shared
