"""Checkpoint files: written atomically, safe to load, the newest two kept."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from rti_exp.config.identity import TIMEOUT, VOLATILE
from rti_exp.runs.differences import ABSENT, differing
from rti_exp.runs.json_lines import replace_atomically, to_json

FORMAT = 3
READABLE = (2, 3)
"""Format 2 has no config and otherwise equals format 3."""
KEPT = 2
LISTED = 12
"""The most differing keys that a message names."""
_NAME = re.compile(r"iteration-(\d+)\.pt")


class CheckpointError(RuntimeError):
    """An intact checkpoint of another run or another format."""


def checkpoint_path(folder: Path, iteration: int) -> Path:
    return folder / f"iteration-{iteration:06d}.pt"


def save_checkpoint(
    folder: Path, run_key: str, state: Mapping[str, Any], *, previous: int, config: Mapping[str, Any] | None = None
) -> Path:
    """Writes `state` atomically and removes all but the newest two checkpoints.

    Args:
        state: Tensors and plain types; `iteration` names the file.
        previous: The iteration saved or restored last (0: none). Files of later iterations are damaged, and are
            removed.
        config: The run's, kept as JSON text so that an error can say how another run's config differs.

    Raises:
        OSError: the disk refused it; nothing is left of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in _checkpoints(folder):
        if _iteration(path) > previous:
            path.unlink()
    for leftover in (*folder.glob("iteration-*.tmp"), *folder.glob(".iteration-*.tmp")):
        leftover.unlink()
    content = {"format": FORMAT, "run_key": run_key, "config": to_json(config or {}), **state}
    path = checkpoint_path(folder, state["iteration"])
    replace_atomically(path, lambda file: _write(file, content))
    for old in _checkpoints(folder)[KEPT:]:
        old.unlink()
    return path


def _write(file: IO[bytes], content: Mapping[str, Any]) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:
        # torch hides what stopped the writing (a full disk, a signal) behind an unexpected file position.
        stopped_by = error.__context__
        if isinstance(stopped_by, OSError) or (stopped_by is not None and not isinstance(stopped_by, Exception)):
            raise stopped_by from None
        raise


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint in a file, of any run, on the CPU.

    Raises:
        CheckpointError: it cannot be read, or has another format.
    """
    try:
        state = _read(path)
    except Exception as error:  # torch.load raises many types for damaged files
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(state, dict) or state.get("format") not in READABLE:
        raise CheckpointError(
            f"{path}: not a checkpoint of a format that this version reads ({' and '.join(map(str, READABLE))})"
        )
    return state


def latest_valid_checkpoint(
    folder: Path, run_key: str, config: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, on the CPU; None if there is none.

    A damaged file (full disk, interrupted copy) is skipped with a warning.

    Raises:
        CheckpointError: the newest readable one belongs to another run or format; the message names both, and the
            keys in which that run's config differs from `config`.
    """
    for path in _checkpoints(folder):
        try:
            state = _read(path)
        except Exception as error:  # torch.load raises many types for damaged files
            warnings.warn(f"{path} cannot be read ({type(error).__name__}: {error}); it is skipped", stacklevel=2)
            continue
        remedy = "move it away, or start over with fresh=true"
        if not isinstance(state, dict) or state.get("format") not in READABLE:
            actual = state.get("format") if isinstance(state, dict) else type(state).__name__
            readable = " and ".join(map(str, READABLE))
            raise CheckpointError(f"{path}: checkpoint format {actual}, this version reads {readable}; {remedy}")
        if state.get("run_key") != run_key:
            differs = _differences(state.get("config"), config)
            raise CheckpointError(
                f"{path}: belongs to run {state.get('run_key')}, not to run {run_key}{differs}; {remedy}"
            )
        if state.get("iteration") != _iteration(path):
            raise CheckpointError(f"{path}: holds iteration {state.get('iteration')}; {remedy}")
        return state
    return None


def _differences(stored: Any, config: Mapping[str, Any] | None) -> str:
    """The keys of the run key in which two configs differ, for a message; empty if unknown."""
    try:
        other = json.loads(stored) if isinstance(stored, str) else None
    except ValueError:
        return ""
    if not isinstance(other, dict) or not other or config is None:
        return ""
    differences = [
        f"{key} ({_shown(theirs)} there, {_shown(ours)} here)"
        for key, theirs, ours in differing(other, json.loads(to_json(config)))
        if key.partition(".")[0] not in VOLATILE and key != f"env.{TIMEOUT}"
    ]
    more = f" and {len(differences) - LISTED} more" if len(differences) > LISTED else ""
    return f"; their configs differ in {', '.join(differences[:LISTED])}{more}" if differences else ""


def _shown(value: Any) -> str:
    text = "nothing" if value is ABSENT else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _read(path: Path) -> Any:
    """
    Raises:
        Exception: of any type; the file is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()  # torch.load does not verify the checksums of tensors
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    paths = [path for path in folder.glob("iteration-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=_iteration, reverse=True)


def _iteration(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint")
    return int(match[1])
