"""Keys and values as the compiled steps (`rti_exp.compiled_qwen3.decode_kernels`) read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rti_exp.engines.slots import Slots, rounded

_LENGTH_STEP = 48
"""No power of two: rows of keys that are that far apart fall on the same lines of the processor's cache."""
_MANY_SLOTS, _SMALL_BYTES = 1024, 2**30
"""So many slots from the start, where they are at most so many bytes: memory that was never written to is not taken."""


class FlatCache(Slots):
    """Keys [slots, key heads, W, length] and values [slots, key heads, length, W] of each layer.

    Memory: as of `rti_exp.engines.slots.SlotCache`.
    """

    in_front = False

    def __init__(self, *, layers: int, key_heads: int, width: int) -> None:
        self.slot_count = self.length = 0
        self._key_heads, self._width = key_heads, width
        self._used = 0
        """So many first slots may hold something."""
        self.keys = [self._empty(0, 0, keys=True)] * layers
        self.values = [self._empty(0, 0, keys=False)] * layers

    def _empty(self, slots: int, length: int, *, keys: bool) -> Tensor:
        own = (self._width, length) if keys else (length, self._width)
        return torch.empty((slots, self._key_heads, *own), dtype=torch.float32, device="cpu")

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        if slots > self.slot_count or length > self.length:
            self.slot_count, self.length = self._size(slots, length, most_slots)
            for layer in range(len(self.keys)):
                self.keys[layer] = self._grown(self.keys[layer], keys=True)
                self.values[layer] = self._grown(self.values[layer], keys=False)
        self._used = max(self._used, slots)

    def _size(self, slots: int, length: int, most_slots: int) -> tuple[int, int]:
        """Slots and positions to have: more than asked for where that is little."""
        a_position = 2 * 4 * len(self.keys) * self._key_heads * self._width
        longer = self.length * 3 // 2 if length > self.length else self.length
        many, long = max(slots, self._used, _MANY_SLOTS), rounded(max(length, longer), _LENGTH_STEP)
        if a_position * many * long <= _SMALL_BYTES:
            return many, long
        doubled = min(2 * self._used, most_slots) if slots > self._used else self._used
        return max(slots, doubled), rounded(max(length, self.length), _LENGTH_STEP)

    def _grown(self, stored: Tensor, *, keys: bool) -> Tensor:
        grown = self._empty(self.slot_count, self.length, keys=keys)
        _, _, first, second = stored.shape
        grown[: self._used, :, :first, :second] = stored[: self._used]
        return grown

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        from rti_exp.compiled_qwen3 import decode_kernels as kernels  # needs the compiler

        pairs = np.array(sources, np.int64), np.array(targets, np.int64)
        for keys, values in zip(self.keys, self.values, strict=True):
            kernels.copy(keys.numpy(), values.numpy(), *pairs, length)
