"""The collective operations of training; with one process each is the identity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def world_size() -> int:
    return torch.distributed.get_world_size() if _several() else 1


def rank() -> int:
    return torch.distributed.get_rank() if _several() else 0


def _several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def leave() -> None:
    """Leaves the process group, if this process is in one.

    Gloo's threads must be joined before the interpreter exits; otherwise the C++ runtime may abort a process that has
    finished ("terminate called without an active exception"). Lightning itself ends NCCL's group at exit.
    """
    if _several() and torch.distributed.get_backend() != "nccl":
        torch.distributed.destroy_process_group()


def sum_over_ranks(values: Tensor) -> Tensor:
    """Elementwise sum over the ranks; every rank must call it with the same shape."""
    if world_size() > 1:
        values = values.clone()
        torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.SUM)
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """Elementwise maximum over the ranks; every rank must call it with the same shape."""
    if world_size() > 1:
        values = values.clone()
        torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
    return values


def gather_from_ranks(item: Item) -> list[Item]:
    """`item` of every rank, in rank order, on every rank."""
    if world_size() == 1:
        return [item]
    gathered: list[Item | None] = [None] * world_size()
    torch.distributed.all_gather_object(gathered, item)
    return gathered  # pyright: ignore[reportReturnType]


def interleave(shards: Sequence[Sequence[Item]]) -> list[Item]:
    """Undoes sharding by `items[rank::world_size]`."""
    missing = object()
    rounds = zip_longest(*shards, fillvalue=missing)
    return [item for items in rounds for item in items if item is not missing]  # pyright: ignore[reportReturnType]
