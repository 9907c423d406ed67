"""Keys and values in slots: a transformers cache whose rows have different lengths.

A row of the cache is a slot of `length` positions. A forward pass writes to given places and reads the first positions
of the slots that it works on; a prepared 4-D mask hides what lies behind a row's own length. Rows can therefore be
continued, copied and cut without padding, and without moving other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_SLOT_STEP = 32
_LENGTH_STEP = 64


class KeyValueCache(Protocol):
    """Slots of keys and values, in any layout."""

    slot_count: int
    length: int

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        """Grows to at least this many slots and positions; stored values stay.

        It may grow further, to grow rarely; more than `most_slots` will never be needed.
        """
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copies the first `length` positions of each source slot to its target slot; no target is a source."""
        ...


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
        # Zeros, not empty memory: hidden positions are multiplied by 0, and 0 * NaN is NaN.
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
        return stored[cache.slots, : cache.visible].transpose(1, 2)

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def grow(self) -> None:
        """Takes the cache's new size; stored values stay."""
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


class SlotCache(Cache):
    """The layers, where the next forward pass writes (`places`), and what it reads (`slots`, `visible`).

    Memory: slots * length * 2 * layers * key/value heads * head width values.
    """

    def __init__(self, layers: int) -> None:
        self._slot_layers = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self._slot_layers))
        self.slot_count = 0
        self.length = 0
        self.places = self.slots = torch.empty(0, dtype=torch.long)
        self.visible = 0

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        if slots > self.slot_count:
            slots = max(slots, min(2 * self.slot_count, most_slots))
        self.reserve(_rounded(slots, _SLOT_STEP), _rounded(length, _LENGTH_STEP))

    def reserve(self, slot_count: int, length: int) -> None:
        """Grows to at least this many slots and positions; stored values stay."""
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
            beginning = stored[:, :length]
            beginning.index_copy_(0, to_slots, beginning.index_select(0, from_slots))

    def point(self, slots_B: Tensor, positions_BT: Tensor, visible: int) -> None:
        """Sets where the next forward pass of [B, T] tokens writes, and how many positions of each slot it reads."""
        self.places = (slots_B[:, None] * self.length + positions_BT).flatten()
        self.slots, self.visible = slots_B, visible


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
