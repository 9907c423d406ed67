"""The pool of slots: finds a seat for each sequence, keeping as much of what is already computed as it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rti_exp.engines.prefixes import PrefixIndex, Row
from rti_exp.engines.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a sequence is computed: `row` already holds its first `shared` tokens; `copies` wait for the rest."""

    row: Row
    shared: int
    copies: list[Row] = field(default_factory=list)


class SlotPool:
    """Slots with keys and values, and the index of what they hold."""

    def __init__(self, cache: Slots, *, cache_rows: int) -> None:
        self.cache: Any = cache  # of the layout of the forward pass that made it
        self.index = PrefixIndex()
        self._cache_rows = cache_rows

    def clear(self) -> None:
        """Forget all contents. The memory stays, and what the next calls do is as after construction."""
        self.index = PrefixIndex()

    def seat(
        self, sequences: Sequence[tuple[int, ...]], limits: Sequence[int], copies: Sequence[int], room: int
    ) -> list[Seat]:
        """A seat for each of these sequences; where the cache wants it, together they take its first slots.

        A sequence goes on in the row that it extends as a whole, else a row not lately used is overwritten with a
        copy of the longest stored prefix.

        Args:
            sequences: what is to be computed.
            limits: at most so many tokens of each may be taken as stored.
            copies: further rows to reserve for each.
            room: tokens that the longest row will hold.
        """
        total = len(sequences) + sum(copies)
        # Twice: each row may be filled from another one, and those are worth keeping.
        self.index.reserve(max(self._cache_rows, 2 * total))
        found = [self.index.longest(sequence) for sequence in sequences]
        claimed: dict[Row, None] = {}
        extended: list[Row | None] = []
        for hit in found:
            fits = hit is not None and hit[1] == len(hit[0].ids) and hit[0] not in claimed
            extended.append(hit[0] if hit is not None and fits else None)
            if hit is not None and fits:
                claimed[hit[0]] = None
        kept = {*claimed, *(hit[0] for hit in found if hit is not None)}
        free = self.index.least_used(total - len(claimed), kept)
        rows = [*claimed, *free]
        # One position more than asked: a last one that no row uses, for padding to be written to.
        self.cache.make_room(max(total, *(row.slot + 1 for row in rows)), room + 1, most_slots=len(self.index.rows))
        if self.cache.in_front:
            self._gather(rows, total, overwritten=set(free))
        return self._fill(sequences, limits, copies, found, extended, free)

    def _gather(self, rows: Sequence[Row], total: int, *, overwritten: set[Row]) -> None:
        members = set(rows)
        outside = [row for row in rows if row.slot >= total]
        inside = [row for row in self.index.rows[:total] if row not in members]
        # What is overwritten anyway, or holds nothing, need not be carried along.
        pairs = [
            (one.slot, other.slot, one not in overwritten, bool(other.ids))
            for one, other in zip(outside, inside, strict=True)
        ]
        both = [(one, other) for one, other, first, second in pairs if first and second]
        moves = [(one, other) for one, other, first, second in pairs if first and not second]
        moves += [(other, one) for one, other, first, second in pairs if second and not first]
        length = max((len(row.ids) for row in (*outside, *inside)), default=0)
        self.cache.swap([one for one, _ in both], [other for _, other in both], length)
        self.cache.copy([one for one, _ in moves], [other for _, other in moves], length)
        for one, other in zip(outside, inside, strict=True):
            self.index.swap(one, other)

    def _fill(
        self,
        sequences: Sequence[tuple[int, ...]],
        limits: Sequence[int],
        copies: Sequence[int],
        found: Sequence[tuple[Row, int] | None],
        extended: Sequence[Row | None],
        free: Sequence[Row],
    ) -> list[Seat]:
        unused = iter(free)
        seats: list[Seat] = []
        sources: list[int] = []
        targets: list[int] = []
        for sequence, limit, count, hit, row in zip(sequences, limits, copies, found, extended, strict=True):
            shared = 0 if hit is None else min(hit[1], limit)
            if row is None:
                row = next(unused)
                self.index.store(row, sequence[:shared])
                if hit is not None:
                    self.index.touch(hit[0])
                    sources.append(hit[0].slot)
                    targets.append(row.slot)
            seats.append(Seat(row=row, shared=shared, copies=[next(unused) for _ in range(count)]))
        self.cache.copy(sources, targets, max((seat.shared for seat in seats), default=0))
        return seats

    def copy_to_followers(self, seats: Sequence[Seat], lengths: Sequence[int]) -> None:
        """Each seat's computed first tokens into the rows that wait for them."""
        pairs = [(seat.row.slot, row.slot) for seat in seats for row in seat.copies]
        self.cache.copy([one for one, _ in pairs], [other for _, other in pairs], max(lengths, default=0))

    def swap(self, first: Sequence[Row], second: Sequence[Row], length: int) -> None:
        """Exchange the slots of rows and their first `length` positions, pair by pair."""
        self.cache.swap([row.slot for row in first], [row.slot for row in second], length)
        for one, other in zip(first, second, strict=True):
            self.index.swap(one, other)
