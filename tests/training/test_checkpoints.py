"""Checkpoints are written atomically, on a full disk too, and those of earlier versions still load."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp.training.checkpoints import latest_valid_checkpoint, save_checkpoint

WEIGHTS = torch.arange(10_000.0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_two_are_kept_and_later_ones_are_removed_as_damaged(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        save_checkpoint(tmp_path, "key", {"iteration": iteration, "a": WEIGHTS}, previous=iteration - 1)
    assert names(tmp_path) == ["iteration-000002.pt", "iteration-000003.pt"]
    (tmp_path / "iteration-000009.pt").write_bytes(b"half a file")
    save_checkpoint(tmp_path, "key", {"iteration": 4, "a": WEIGHTS}, previous=3)
    assert names(tmp_path) == ["iteration-000003.pt", "iteration-000004.pt"]


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_disk_that_refuses_a_checkpoint_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    save_checkpoint(tmp_path, "key", {"iteration": 1, "a": WEIGHTS}, previous=0)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*{"write": (torch, "save"), "fsync": (os, "fsync"), "replace": (os, "replace")}[broken], refuse)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, "key", {"iteration": 2, "a": WEIGHTS}, previous=1)
    monkeypatch.undo()
    assert names(tmp_path) == ["iteration-000001.pt"]
    state = latest_valid_checkpoint(tmp_path, "key")
    assert state is not None
    assert torch.equal(state["a"], WEIGHTS)


def test_a_full_disk_is_reported_as_such(tmp_path: Path) -> None:
    """torch raises a RuntimeError about file positions; /dev/full refuses every write."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    from rti_exp.training.checkpoints import _write

    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        _write(full, {"a": WEIGHTS})


def test_a_signal_during_the_writing_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(io.FileIO):
        def write(self, content: Any) -> int:
            if self.tell() > 4096:
                raise KeyboardInterrupt
            return super().write(content)

    monkeypatch.setattr("builtins.open", lambda path, mode: Interrupting(path, mode))
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, "key", {"iteration": 1, "a": WEIGHTS, "b": WEIGHTS + 1}, previous=0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("mask", [0o002, 0o077])
def test_the_umask_decides_who_may_read_a_checkpoint(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = save_checkpoint(tmp_path, "key", {"iteration": 1, "weights": WEIGHTS}, previous=0)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_checkpoint_of_the_version_before_loads() -> None:
    """tests/support/data/checkpoints was written by version 0.1.0's own archive code."""
    state = latest_valid_checkpoint(Path(__file__).parents[1] / "support" / "data" / "checkpoints", "0123456789ab")
    assert state is not None
    assert (state["iteration"], state["policy_version"]) == (3, 2)
    assert torch.equal(state["model"]["weight"], torch.arange(6.0).view(2, 3))
