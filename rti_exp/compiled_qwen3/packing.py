"""Rows of token ids as one list of tokens: none of padding, and what rows begin with in common once.

A causal model gives equal tokens after equal tokens the same state. So the members of a group share their prompt's
states, and whatever else they begin with alike. Only attention needs rows again: the tokens of a row are copied beside
each other, in chunks of rows of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_PADDING = 32
"""Padded places that a chunk may waste before a further one is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """N distinct tokens, and P places in chunks of rows, which attention works on.

    Example: the rows (5, 6, 7) and (5, 6, 8, 9), longest first, are the tokens 5 6 8 9 7 at the positions 0 1 2 3 2,
    in one chunk of two rows of four; the second row's places hold the tokens 0, 1 and 4, and padding.
    """

    token_ids_N: Tensor
    positions_N: Tensor
    chunks: tuple[tuple[int, int], ...]
    """Rows and length of each chunk; their places follow each other, row after row."""
    tokens_P: Tensor
    """Which token is at each place; token 0 at padding, which nothing looks at."""
    own_places_N: Tensor
    """The place at which a token's attention is taken."""
    shared_places_S: Tensor
    """Other places at which a token stands, for later tokens of another row to look at."""
    shared_tokens_S: Tensor
    rows_R4: Tensor
    """Of each row of places the first one, the row's length, how many of its first tokens are taken elsewhere, and the
    first of the others, which follow each other."""
    tokens_BT: Tensor
    """Which token each of the given rows has where; 0 beyond its end."""

    @property
    def places(self) -> int:
        return len(self.tokens_P)

    @property
    def in_place(self) -> bool:
        """Whether the tokens, as they stand, are the places."""
        return len(self.shared_places_S) == 0 and len(self.token_ids_N) == self.places


def pack(rows: Sequence[Sequence[int]]) -> Packing:
    """
    Args:
        rows: token ids, at least one in each row.
    """
    arrays = [np.asarray(row) for row in rows]
    tokens, shared = _distinct(arrays)
    # A row that is the beginning of another one has no token of its own, and needs no attention.
    own = [row for row in range(len(rows)) if shared[row] < len(arrays[row])]
    chunks = _chunks([(len(arrays[row]), row) for row in own])
    count = sum(len(arrays[row]) - shared[row] for row in own)
    token_ids_N, positions_N, own_places_N = (np.zeros(count, dtype=np.int64) for _ in range(3))
    tokens_P = np.zeros(sum(len(chunk) * len(arrays[chunk[0]]) for chunk in chunks), dtype=np.int64)
    shared_places: list[np.ndarray] = []
    shared_tokens: list[np.ndarray] = []
    # Numbered in the order of the places: without sharing and padding the tokens are the places.
    renumbered = np.zeros(count, dtype=np.int64)
    placed: list[tuple[int, int, int, int]] = []
    start = first = 0
    for row, width in [(row, len(arrays[chunk[0]])) for chunk in chunks for row in chunk]:
        length, known = len(arrays[row]), shared[row]
        fresh = slice(first, first + length - known)
        renumbered[tokens[row][known:]] = np.arange(fresh.start, fresh.stop)
        token_ids_N[fresh] = arrays[row][known:]
        positions_N[fresh] = np.arange(known, length)
        own_places_N[fresh] = np.arange(start + known, start + length)
        tokens_P[start : start + length] = tokens[row]
        placed.append((start, length, known, first))
        shared_places.append(np.arange(start, start + known))
        shared_tokens.append(tokens[row][:known])
        start, first = start + width, fresh.stop
    tokens_BT = np.zeros((len(rows), max(map(len, arrays))), dtype=np.int64)
    for row, numbers in enumerate(tokens):
        tokens_BT[row, : len(numbers)] = renumbered[numbers]
    filled = np.zeros(len(tokens_P), dtype=bool)
    filled[own_places_N] = True
    shared_places_S = np.concatenate(shared_places)
    filled[shared_places_S] = True
    tokens_P = np.where(filled, renumbered[tokens_P], 0)
    return Packing(
        chunks=tuple((len(chunk), len(arrays[chunk[0]])) for chunk in chunks),
        token_ids_N=torch.from_numpy(token_ids_N),
        positions_N=torch.from_numpy(positions_N),
        tokens_P=torch.from_numpy(tokens_P),
        own_places_N=torch.from_numpy(own_places_N),
        shared_places_S=torch.from_numpy(shared_places_S),
        shared_tokens_S=torch.from_numpy(renumbered[np.concatenate(shared_tokens)]),
        rows_R4=torch.tensor(placed),
        tokens_BT=torch.from_numpy(tokens_BT),
    )


def _distinct(rows: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The number of each row's tokens, and how many of a row's first ones an earlier one in this order has too.

    In the order of their ids, whatever a row has in common with an earlier one it has in common with the last.
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
        fresh = len(rows[row]) - shared[row]
        known = tokens[last][: shared[row]] if last is not None else np.zeros(0, dtype=np.int64)
        tokens[row] = np.concatenate([known, np.arange(count, count + fresh)])
        count, last = count + fresh, row
    return [tokens[row] for row in range(len(rows))], shared


def _chunks(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Rows of similar length, longest first; of (length, row)."""
    chunks: list[list[int]] = []
    longest = wasted = 0
    for length, row in sorted(lengths, key=lambda pair: (-pair[0], pair[1])):
        if not chunks or wasted + longest - length > _PADDING:
            chunks.append([])
            longest, wasted = length, 0
        chunks[-1].append(row)
        wasted += longest - length
    return chunks
