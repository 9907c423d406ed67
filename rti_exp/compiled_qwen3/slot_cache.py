"""Keys and values of the compiled rollouts, in the layout that `rti_exp.compiled_qwen3.decode_kernels` reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rti_exp.compiled_qwen3 import decode_kernels

_LENGTH_STEP = 48
"""Not a power of two: rows of keys at such distances would compete for the same sets of the processor's cache."""
_MANY_SLOTS, _SMALL_BYTES = 1024, 2**30
"""This many slots from the start where they take at most this many bytes; memory that is never written is not used."""


class KernelSlotCache:
    """Keys [slots, key heads, W, length] and values [slots, key heads, length, W] of each layer.

    Memory: as of `rti_exp.engines.key_value_cache.SlotCache`.
    """

    def __init__(self, *, layers: int, key_heads: int, width: int) -> None:
        self.slot_count = self.length = 0
        self._key_heads, self._width = key_heads, width
        self._used = 0
        """Slots from this one on hold nothing."""
        self.keys = [self._empty(0, 0, keys=True)] * layers
        self.values = [self._empty(0, 0, keys=False)] * layers

    def make_room(self, slots: int, length: int, *, most_slots: int) -> None:
        if slots > self.slot_count or length > self.length:
            self.slot_count, self.length = self._size(slots, length, most_slots)
            for layer in range(len(self.keys)):
                self.keys[layer] = self._grown(self.keys[layer], keys=True)
                self.values[layer] = self._grown(self.values[layer], keys=False)
        self._used = max(self._used, slots)

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        pairs = np.array(sources, np.int64), np.array(targets, np.int64)
        for keys, values in zip(self.keys, self.values, strict=True):
            decode_kernels.copy(keys.numpy(), values.numpy(), *pairs, length)

    def _empty(self, slots: int, length: int, *, keys: bool) -> Tensor:
        last_axes = (self._width, length) if keys else (length, self._width)
        return torch.empty((slots, self._key_heads, *last_axes), dtype=torch.float32, device="cpu")

    def _size(self, slots: int, length: int, most_slots: int) -> tuple[int, int]:
        """Slots and positions to allocate: more than requested where that is little memory."""
        position_bytes = 2 * 4 * len(self.keys) * self._key_heads * self._width
        longer = self.length * 3 // 2 if length > self.length else self.length
        many, long = max(slots, self._used, _MANY_SLOTS), _rounded(max(length, longer))
        if position_bytes * many * long <= _SMALL_BYTES:
            return many, long
        doubled = min(2 * self._used, most_slots) if slots > self._used else self._used
        return max(slots, doubled), _rounded(max(length, self.length))

    def _grown(self, stored: Tensor, *, keys: bool) -> Tensor:
        grown = self._empty(self.slot_count, self.length, keys=keys)
        _, _, first, second = stored.shape
        grown[: self._used, :, :first, :second] = stored[: self._used]
        return grown


def _rounded(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP
