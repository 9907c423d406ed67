"""Which slot holds the keys and values of which ids, and finding the longest stored prefix of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

BLOCK = 8
"""Prefixes are looked up at multiples of this many tokens; the exact common length is found from there."""
_CANDIDATES = 32


@dataclass(eq=False, slots=True)
class Row:
    """A slot and the ids whose keys and values it holds, in order. `chain[i]` hashes the first (i + 1) blocks."""

    slot: int
    ids: tuple[int, ...] = ()
    chain: list[int] = field(default_factory=list)
    used: int = 0


def _chain(ids: tuple[int, ...]) -> list[int]:
    """A hash for each whole block, of the ids up to its end. Tuples of ints hash alike in every process."""
    chain: list[int] = []
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        chain.append(hash((chain[-1] if chain else 0, ids[start : start + BLOCK])))
    return chain


def common_length(first: tuple[int, ...], second: tuple[int, ...], known: int = 0) -> int:
    """How many leading ids are equal; the first `known` are taken to be."""
    length = known
    for one, other in zip(first[known:], second[known:], strict=False):
        if one != other:
            break
        length += 1
    return length


class PrefixIndex:
    """The rows of a pool of slots, found by what they hold. Cost of a look-up: linear in the prompt."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._holders: dict[int, dict[Row, None]] = {}
        self._clock = 0

    def reserve(self, slot_count: int) -> None:
        self.rows += [Row(slot) for slot in range(len(self.rows), slot_count)]

    def longest(self, prompt: tuple[int, ...]) -> tuple[Row, int] | None:
        """A row with (up to a block) the longest prefix in common, and how long it is; None if under one block.

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
    def _best(prompt: tuple[int, ...], known: int, holders: dict[Row, None]) -> tuple[Row, int] | None:
        best: tuple[Row, int] | None = None
        for row in islice(reversed(holders), _CANDIDATES):
            if row.ids[:known] != prompt[:known]:  # two hashes fell together
                continue
            common = common_length(row.ids, prompt, known)
            if common == len(row.ids):
                return row, common
            if best is None or common > best[1]:
                best = (row, common)
        return best

    def touch(self, row: Row) -> None:
        self._clock += 1
        row.used = self._clock

    def store(self, row: Row, ids: tuple[int, ...]) -> None:
        """`row` now holds `ids`."""
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
        """`count` rows to overwrite, none out of `keep`: the empty ones first, then the longest unused."""
        free = sorted((row for row in self.rows if row not in keep), key=lambda row: (row.used, row.slot))
        return free[:count]

    def swap(self, first: Row, second: Row) -> None:
        """The contents of two slots were exchanged."""
        self.rows[first.slot], self.rows[second.slot] = second, first
        first.slot, second.slot = second.slot, first.slot
