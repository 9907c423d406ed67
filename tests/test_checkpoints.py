"""Checkpoints on a disk that is full."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp import checkpoints, disk


class FullDisk(io.FileIO):
    """A file that takes no more than 4096 bytes."""

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > 4096:
            raise OSError(28, "No space left on device")
        return super().write(content)


def test_a_full_disk_is_told_as_such_and_given_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save_checkpoint(tmp_path, "key", {"iteration": 1}, previous=0)
    monkeypatch.setattr(disk, "open", lambda path, mode: FullDisk(path, mode), raising=False)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save_checkpoint(tmp_path, "key", {"iteration": 2, "weights": torch.ones(10_000)}, previous=1)
    assert [path.name for path in tmp_path.iterdir()] == ["iteration-000001.pt"]
