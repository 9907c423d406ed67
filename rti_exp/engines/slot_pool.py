"""Assigns a slot to each sequence and keeps as many stored keys and values as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rti_exp.engines.key_value_cache import KeyValueCache
from rti_exp.engines.prefix_index import PrefixIndex, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a sequence is computed: `row` holds its first `shared` tokens; `copies` are rows that need the same."""

    row: Row
    shared: int
    copies: list[Row] = field(default_factory=list)


class SlotPool:
    """Slots with keys and values, and the index of their contents."""

    def __init__(self, cache: KeyValueCache, *, cache_rows: int) -> None:
        self.cache = cache
        self.index = PrefixIndex()
        self._cache_rows = cache_rows

    def clear(self) -> None:
        """Forgets all contents. The memory stays; later calls behave as after construction."""
        self.index = PrefixIndex()

    def seat(
        self, sequences: Sequence[tuple[int, ...]], limits: Sequence[int], copies: Sequence[int], room: int
    ) -> list[Seat]:
        """A seat for each sequence.

        A sequence continues in the row that it extends as a whole. Otherwise a row that was not used lately is
        overwritten with a copy of the longest stored prefix.

        Args:
            sequences: token ids to compute.
            limits: the most tokens of each that may be taken from the cache.
            copies: the number of further rows to reserve for each.
            room: tokens of the longest row.
        """
        total = len(sequences) + sum(copies)
        # Twice: each row may be copied from another one, which is worth keeping.
        self.index.reserve(max(self._cache_rows, 2 * total))
        hits = [self.index.longest(sequence) for sequence in sequences]
        claimed: dict[Row, None] = {}
        extended: list[Row | None] = []
        for hit in hits:
            row = hit[0] if hit is not None and hit[1] == len(hit[0].ids) and hit[0] not in claimed else None
            extended.append(row)
            if row is not None:
                claimed[row] = None
        kept = {*claimed, *(hit[0] for hit in hits if hit is not None)}
        free = self.index.least_used(total - len(claimed), kept)
        # One position more than requested: padding is written to the last one.
        slots = max(total, *(row.slot + 1 for row in (*claimed, *free)))
        self.cache.make_room(slots, room + 1, most_slots=len(self.index.rows))
        unused = iter(free)
        seats: list[Seat] = []
        moves: list[tuple[int, int]] = []
        for sequence, limit, count, hit, row in zip(sequences, limits, copies, hits, extended, strict=True):
            shared = 0 if hit is None else min(hit[1], limit)
            if row is None:
                row = next(unused)
                self.index.store(row, sequence[:shared])
                if hit is not None:
                    self.index.touch(hit[0])
                    moves.append((hit[0].slot, row.slot))
            seats.append(Seat(row=row, shared=shared, copies=[next(unused) for _ in range(count)]))
        self._copy(moves, max((seat.shared for seat in seats), default=0))
        return seats

    def copy_to_followers(self, seats: Sequence[Seat], lengths: Sequence[int]) -> None:
        """Copies each seat's first tokens, now computed, to its `copies`."""
        self._copy([(seat.row.slot, row.slot) for seat in seats for row in seat.copies], max(lengths, default=0))

    def _copy(self, moves: Sequence[tuple[int, int]], length: int) -> None:
        self.cache.copy([source for source, _ in moves], [target for _, target in moves], length)
