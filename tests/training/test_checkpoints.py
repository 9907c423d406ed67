"""Checkpoints on a disk that is full, on one that writes as it likes, and of states that are not copied."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp.runs import disk
from rti_exp.training import archive, checkpoints

FULL = OSError(errno.ENOSPC, "No space left on device")
WEIGHTS = torch.arange(10_000.0)


class FullDisk(io.FileIO):
    """A file that takes no more than 4096 bytes."""

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > 4096:
            raise OSError(*FULL.args)
        return super().write(content)


def full_from(limit: int, real: Callable[[int, Any, int], int]) -> Callable[[int, Any, int], int]:
    """pwrite of files that hold no more than `limit` bytes."""

    def pwrite(descriptor: int, content: Any, offset: int) -> int:
        if offset >= limit:
            raise OSError(*FULL.args)
        return real(descriptor, content[: limit - offset], offset)

    return pwrite


@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS.to_sparse()], ids=["copied", "written at once"])
def test_a_full_disk_is_told_as_such_and_given_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: torch.Tensor
) -> None:
    checkpoints.save_checkpoint(tmp_path, "key", {"iteration": 1}, previous=0)
    monkeypatch.setattr(disk, "open", lambda path, mode: FullDisk(path, mode), raising=False)
    monkeypatch.setattr(os, "pwrite", full_from(4096, os.pwrite))
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save_checkpoint(tmp_path, "key", {"iteration": 2, "weights": weights}, previous=1)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000001.pt"]


def test_the_file_is_that_of_the_moment_of_taking_it(tmp_path: Path) -> None:
    weights = WEIGHTS.clone()
    taken = checkpoints.Checkpointer(tmp_path, "key").take({"iteration": 1, "model": {"a": weights}}, previous=0)
    weights.zero_()
    taken.publish()
    state = torch.load(tmp_path / "iteration-000001.pt", weights_only=True)
    assert torch.equal(state["model"]["a"], WEIGHTS)


@pytest.mark.parametrize(
    "state",
    [
        {"model": {"a": torch.ones(archive.LARGEST // 4 + 1)}},
        {"model": {"a": torch.ones(4).to_sparse()}},
        {"model": {"a": torch.ones(0)}},
    ],
    ids=["too large", "sparse", "empty"],
)
def test_a_state_that_is_not_copied_is_written_at_once_and_kept_as_well(tmp_path: Path, state: dict[str, Any]) -> None:
    taken = checkpoints.Checkpointer(tmp_path, "key").take({"iteration": 1, **state}, previous=0)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000001.tmp"]
    taken.publish()
    found = checkpoints.latest_valid_checkpoint(tmp_path, "key")
    assert found is not None
    assert found["iteration"] == 1
    kept, wanted = found["model"]["a"], state["model"]["a"]
    assert kept.shape == wanted.shape
    assert torch.equal(kept.to_dense(), wanted.to_dense())


SIZES = (1, 4095, 4096, 4097, 10_000)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("behaviour", ["as it is", "no O_DIRECT", "refused when written", "in small parts"])
def test_a_whole_file_is_written_whatever_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, behaviour: str
) -> None:
    """Past the page cache or not, in one part or many, with what comes after it in memory left out."""
    memory = torch.arange(16384, dtype=torch.int32).view(torch.uint8)
    memory = memory[-memory.data_ptr() % disk.BLOCK :].numpy().data
    real_open, real_pwrite = os.open, os.pwrite
    direct: set[int] = set()

    def opened(path: Any, flags: int, *others: Any) -> int:
        if flags & os.O_DIRECT and behaviour == "no O_DIRECT":
            raise OSError(errno.EINVAL, "Invalid argument")
        descriptor = real_open(path, flags & ~os.O_DIRECT, *others)
        direct.update([descriptor] if flags & os.O_DIRECT else [])
        return descriptor

    def pwrite(descriptor: int, content: Any, offset: int) -> int:
        if behaviour == "refused when written" and (offset or len(content) % disk.BLOCK == 0) and descriptor in direct:
            direct.discard(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_pwrite(descriptor, content[:1000] if behaviour == "in small parts" else content, offset)

    if behaviour != "as it is":
        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "pwrite", pwrite)
    disk.write_whole(tmp_path / "file", memory, size)
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == bytes(memory[:size])
    disk.write_whole(tmp_path / "file", memory, size // 2)  # a longer one that is there is replaced
    assert (tmp_path / "file").read_bytes() == bytes(memory[: size // 2])


@pytest.mark.parametrize("mask", [0o002, 0o077])
@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS.to_sparse()], ids=["copied", "written at once"])
def test_who_may_read_and_write_a_checkpoint_is_the_mask_to_say(
    tmp_path: Path, mask: int, weights: torch.Tensor
) -> None:
    before = os.umask(mask)
    try:
        path = checkpoints.save_checkpoint(tmp_path, "key", {"iteration": 1, "weights": weights}, previous=0)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
