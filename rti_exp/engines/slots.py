"""Keys and values in slots: a transformers cache whose rows have lengths of their own.

A row of the cache is a slot of `length` positions. The forward pass writes where it is told, row by row, and sees
the first positions of the slots it works on; a prepared 4-D mask hides what lies beyond a row's own length. So
rows are continued, copied and cut without padding or moving the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_SLOT_STEP = 32
_LENGTH_STEP = 64


def rounded(size: int, step: int) -> int:
    """Up to a multiple of `step`."""
    return -(-size // step) * step


class Slots(ABC):
    """Rows of keys and values, whatever their layout."""

    in_front: bool
    """Whether rows that are computed together have to stand in the first slots."""

    slot_count: int
    length: int

    @abstractmethod
    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        """At least so many slots and positions, and more, so that it grows a few times only; what is stored stays.

        There will never be use for over `most_slots`.
        """

    @abstractmethod
    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """The first `length` positions of each source slot into the target slot beside it; no target is a source."""


class SlotLayer(CacheLayerMixin):
    """One layer of a `SlotCache`; keys and values are [slots, length, heads, width]."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._allocate(key_states)
        self.values = self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, states_BHTD: Tensor) -> Tensor:
        # Zeros, not empty: what the mask hides is still multiplied by 0, and 0 * NaN is NaN.
        _, heads, _, width = states_BHTD.shape
        return states_BHTD.new_zeros((self._cache.slot_count, self._cache.length, heads, width))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, stored: Tensor, new_BHTD: Tensor) -> Tensor:
        cache, per_token = self._cache, stored.shape[2:]
        new_NHD = new_BHTD.transpose(1, 2).reshape(-1, *per_token)
        stored.view(-1, *per_token).index_copy_(0, cache.places, new_NHD)
        seen = stored[: len(new_BHTD)] if cache.slots is None else stored[cache.slots, : cache.visible]
        return seen[:, : cache.visible].transpose(1, 2)

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def grow(self) -> None:
        """Take the cache's new size; what is stored stays."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self._grown(self.keys), self._grown(self.values)

    def _grown(self, stored: Tensor) -> Tensor:
        grown = stored.new_zeros((self._cache.slot_count, self._cache.length, *stored.shape[2:]))
        grown[: stored.shape[0], : stored.shape[1]] = stored
        return grown

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.visible, 0

    def get_seq_length(self) -> int:
        return self._cache.visible

    def get_max_length(self) -> int:
        return self._cache.length


class SlotCache(Slots, Cache):
    """The layers, and where the next forward pass writes (`places`) and what it sees (`slots`, `visible`).

    Memory: slots * length * 2 * layers * key/value heads * head width values.
    """

    in_front = True

    def __init__(self, layers: int) -> None:
        self._slot_layers = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self._slot_layers))
        self.slot_count = 0
        self.length = 0
        self.places = torch.empty(0, dtype=torch.long)
        self.slots: Tensor | None = None
        self.visible = 0

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        if slots > self.slot_count:
            slots = max(slots, min(2 * self.slot_count, most_slots))
        self.reserve(rounded(slots, _SLOT_STEP), rounded(length, _LENGTH_STEP))

    def reserve(self, slot_count: int, length: int) -> None:
        """At least so many slots and positions; what is stored stays."""
        if slot_count <= self.slot_count and length <= self.length:
            return
        self.slot_count = max(slot_count, self.slot_count)
        self.length = max(length, self.length)
        for layer in self._slot_layers:
            layer.grow()

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        stores = [stored for layer in self._slot_layers for stored in layer.tensors()]
        if not stores or not targets or length == 0:
            return
        from_slots, to_slots = (torch.tensor(slots, device=stores[0].device) for slots in (sources, targets))
        for stored in stores:
            shown = stored[:, :length]
            shown.index_copy_(0, to_slots, shown.index_select(0, from_slots))

    def swap(self, first: Sequence[int], second: Sequence[int], length: int) -> None:
        """Exchange the first `length` positions of slots, pair by pair; no slot may come twice."""
        self.copy([*second, *first], [*first, *second], length)

    def point(self, places_N: Tensor, visible: int, slots_B: Tensor | None = None) -> None:
        """Aim the next forward of [B, T] tokens.

        Args:
            places_N: B * T places, slot * length + position, row after row.
            visible: how many positions of each slot are shown, [B, heads, visible, width].
            slots_B: the slot of each row; None for the first B slots, which are then shown without a copy.
        """
        self.places, self.visible, self.slots = places_N, visible, slots_B
