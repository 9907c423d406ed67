"""Which slot holds the keys and values of which ids, and the longest stored prefix of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

BLOCK = 8
"""Prefixes are looked up at multiples of this many tokens; from there ids are compared one by one."""
_CANDIDATES = 32
"""The most rows with the same blocks that are compared."""


@dataclass(eq=False, slots=True)
class Row:
    """A slot and the ids whose keys and values it holds. `chain[i]` hashes the first (i + 1) blocks."""

    slot: int
    ids: tuple[int, ...] = ()
    chain: list[int] = field(default_factory=list)
    used: int = 0


def _chain(ids: tuple[int, ...]) -> list[int]:
    """For each whole block the hash of all ids up to its end. Tuples of ints have the same hash in every process."""
    chain: list[int] = []
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        chain.append(hash((chain[-1] if chain else 0, ids[start : start + BLOCK])))
    return chain


def common_length(first: tuple[int, ...], second: tuple[int, ...], start: int = 0) -> int:
    """The number of leading ids that are equal; those before `start` must be."""
    length = start
    for left, right in zip(first[start:], second[start:], strict=False):
        if left != right:
            break
        length += 1
    return length


class PrefixIndex:
    """The rows of a pool of slots, looked up by content. A look-up is linear in the prompt's length."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._holders: dict[int, dict[Row, None]] = {}
        self._clock = 0

    def reserve(self, slot_count: int) -> None:
        self.rows += [Row(slot) for slot in range(len(self.rows), slot_count)]

    def longest(self, prompt: tuple[int, ...]) -> tuple[Row, int] | None:
        """A row with the longest common prefix, up to a block, and its length; None if it is under one block.

        Prefers a row that the prompt extends as a whole.
        """
        chain = _chain(prompt)
        for blocks in range(len(chain), 0, -1):
            holders = self._holders.get(chain[blocks - 1])
            if holders:
                best = self._best(prompt, blocks * BLOCK, holders)
                if best is not None:
                    return best
        return None

    @staticmethod
    def _best(prompt: tuple[int, ...], start: int, holders: dict[Row, None]) -> tuple[Row, int] | None:
        best: tuple[Row, int] | None = None
        for row in islice(reversed(holders), _CANDIDATES):
            if row.ids[:start] != prompt[:start]:  # a hash collision
                continue
            common = common_length(row.ids, prompt, start)
            if common == len(row.ids):
                return row, common
            if best is None or common > best[1]:
                best = (row, common)
        return best

    def touch(self, row: Row) -> None:
        self._clock += 1
        row.used = self._clock

    def store(self, row: Row, ids: tuple[int, ...]) -> None:
        """Records that `row` now holds `ids`."""
        chain = _chain(ids)
        kept = common_length(tuple(row.chain), tuple(chain))
        for link in row.chain[kept:]:
            holders = self._holders[link]
            del holders[row]
            if not holders:
                del self._holders[link]
        for link in chain[kept:]:
            self._holders.setdefault(link, {})[row] = None
        row.ids, row.chain = ids, chain
        self.touch(row)

    def least_used(self, count: int, keep: set[Row]) -> list[Row]:
        """`count` rows to overwrite, none of them in `keep`: empty rows first, then the least recently used."""
        free = sorted((row for row in self.rows if row not in keep), key=lambda row: (row.used, row.slot))
        return free[:count]
