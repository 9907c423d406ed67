"""Checkpoint files that are damaged, foreign or old."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rti_exp.training.checkpoints import CheckpointError, latest_valid_checkpoint, save_checkpoint
from tests.support.training_fakes import (
    files,
)

KEY = "0123456789ab"


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(5000), b"\x80\x02."])
def test_damaged_checkpoints_are_passed_over(tmp_path: Path, content: bytes) -> None:
    save_checkpoint(tmp_path, KEY, {"iteration": 1}, previous=0)
    (tmp_path / "iteration-000002.pt").write_bytes(content)
    with pytest.warns(UserWarning, match="cannot be read"):
        state = latest_valid_checkpoint(tmp_path, KEY)
    assert state is not None
    assert state["iteration"] == 1


def test_a_flipped_bit_of_a_tensor_is_damage(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, KEY, {"iteration": 1, "weights": torch.ones(1000)}, previous=0)
    path = save_checkpoint(tmp_path, KEY, {"iteration": 2, "weights": torch.ones(1000)}, previous=1)
    content = bytearray(path.read_bytes())
    content[content.index(torch.ones(100).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="checksum of .* is wrong"):
        state = latest_valid_checkpoint(tmp_path, KEY)
    assert state is not None
    assert state["iteration"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "belongs to run None"), ({"run_key": KEY, "iteration": 7}, "holds iteration 7"), ({"run_key": KEY}, "None")],
)
def test_a_foreign_checkpoint_is_told_with_what_to_do(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    torch.save({"format": 2, **content}, tmp_path / "iteration-000001.pt")
    with pytest.raises(CheckpointError, match=rf"iteration-000001\.pt.*{message}.*; move it away, or .*fresh=true"):
        latest_valid_checkpoint(tmp_path, KEY)


def test_newest_two_valid_are_kept(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        save_checkpoint(tmp_path, KEY, {"iteration": iteration}, previous=iteration - 1)
    assert files(tmp_path) == ["iteration-000002.pt", "iteration-000003.pt"]
    (tmp_path / "iteration-000005.pt").write_bytes(b"damaged")
    (tmp_path / "iteration-000004.tmp").write_bytes(b"torn")
    save_checkpoint(tmp_path, KEY, {"iteration": 4}, previous=3)
    assert files(tmp_path) == ["iteration-000003.pt", "iteration-000004.pt"]


def test_no_checkpoint() -> None:
    assert latest_valid_checkpoint(Path("nowhere"), KEY) is None


def test_checkpoint_of_another_run_is_refused_naming_both(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, KEY, {"iteration": 1}, previous=0)
    with pytest.raises(CheckpointError, match=f"belongs to run {KEY}, not to run other"):
        latest_valid_checkpoint(tmp_path, "other")


def test_checkpoint_of_another_config_is_refused_naming_the_keys(tmp_path: Path) -> None:
    there = {"gate": {"delta": math.inf}, "seed": 1, "logger": {"mode": "online"}, "env": {"timeout": 3.0}, "old": 5}
    here = {"gate": {"delta": 5.0}, "seed": 1, "logger": {"mode": "offline"}, "env": {"timeout": None}, "new": "x" * 99}
    save_checkpoint(tmp_path, KEY, {"iteration": 1}, previous=0, config=there)
    with pytest.raises(CheckpointError) as caught:
        latest_valid_checkpoint(tmp_path, "other", here)
    assert str(caught.value).endswith(
        f"belongs to run {KEY}, not to run other; their configs differ in gate.delta (inf there, 5.0 here), "
        f"old (5 there, nothing here), new (nothing there, {'x' * 60}... here); "
        "move it away, or start over with fresh=true"
    )


def test_a_long_list_of_differing_keys_is_cut(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, KEY, {"iteration": 1}, previous=0, config={f"key{number:02}": 1 for number in range(20)})
    with pytest.raises(CheckpointError, match=r"key11 \(1 there, 2 here\) and 8 more; move"):
        latest_valid_checkpoint(tmp_path, "other", {f"key{number:02}": 2 for number in range(20)})


def test_checkpoint_of_the_format_before_is_read(tmp_path: Path) -> None:
    torch.save({"format": 2, "run_key": KEY, "iteration": 1, "model": {}}, tmp_path / "iteration-000001.pt")
    state = latest_valid_checkpoint(tmp_path, KEY, {"seed": 1})
    assert state is not None
    assert state["iteration"] == 1
    with pytest.raises(CheckpointError, match=f"belongs to run {KEY}, not to run other; move it away"):
        latest_valid_checkpoint(tmp_path, "other", {"seed": 1})


@pytest.mark.parametrize("stored", ["no json", "[]", 7, None])
def test_a_config_that_cannot_be_read_is_left_out_of_the_message(tmp_path: Path, stored: Any) -> None:
    content = {"format": 3, "run_key": KEY, "iteration": 1, "config": stored}
    torch.save(content, tmp_path / "iteration-000001.pt")
    with pytest.raises(CheckpointError, match=f"belongs to run {KEY}, not to run other; move it away"):
        latest_valid_checkpoint(tmp_path, "other", {"seed": 1})


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    torch.save({"format": 99, "run_key": KEY, "iteration": 1}, tmp_path / "iteration-000001.pt")
    with pytest.raises(CheckpointError, match=r"format 99, this version reads 2 and 3; move it away"):
        latest_valid_checkpoint(tmp_path, KEY)
