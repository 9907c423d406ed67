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

from rti_exp.config import TIMEOUT, VOLATILE
from rti_exp.disk import Staged, sync_folder
from rti_exp.jsonlines import to_json
from rti_exp.runs.flat import ABSENT, differing

FORMAT = 3
READABLE = (2, 3)
"""Format 2 has no config; all else is as in 3."""
KEPT = 2
LISTED = 12
"""Differing keys that a message names, at most."""
_NAME = re.compile(r"iteration-(\d+)\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint that is whole but belongs to something else: another run, or another format."""


def checkpoint_path(folder: Path, iteration: int) -> Path:
    return folder / f"iteration-{iteration:06d}.pt"


def save_checkpoint(
    folder: Path, run_key: str, state: Mapping[str, Any], *, previous: int, config: Mapping[str, Any] | None = None
) -> Path:
    """Write `state` (tensors and plain types; `iteration` names the file) and drop all but the newest two.

    The run's config is kept as JSON text, so that another run can say in what it differs.

    A reader sees the whole file or none, also after a kill or a power cut. `previous` is the iteration that was
    saved or restored last (0: none); files of later ones were found damaged, and must not count among the two.
    """
    staged = stage_checkpoint(folder, run_key, state, previous=previous, config=config)
    try:
        publish_checkpoint(staged)
    except BaseException:
        staged.discard()
        raise
    return staged.path


def stage_checkpoint(
    folder: Path, run_key: str, state: Mapping[str, Any], *, previous: int, config: Mapping[str, Any] | None = None
) -> Staged:
    """What `save_checkpoint` writes, still under another name; `publish_checkpoint` does the rest.

    Raises:
        OSError: the disk does not take it; then nothing is left of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for damaged in _checkpoints(folder):
        if _iteration(damaged) > previous:
            damaged.unlink()
    path = checkpoint_path(folder, state["iteration"])
    staged = Staged(path, path.with_suffix(".tmp"))
    try:
        _write(staged.file, {"format": FORMAT, "run_key": run_key, "config": to_json(config or {}), **state})
    except BaseException:
        staged.discard()
        raise
    return staged


def publish_checkpoint(staged: Staged) -> None:
    """Wait for the disk, give the checkpoint its name, and drop all but the newest two.

    Raises:
        OSError: the disk does not take it.
    """
    staged.publish()
    folder = staged.path.parent
    sync_folder(folder)
    for old in _checkpoints(folder)[KEPT:]:
        old.unlink()
    for left in folder.glob("iteration-*.tmp"):
        left.unlink()


def _write(file: IO[bytes], content: Mapping[str, Any]) -> None:
    """
    Raises:
        OSError: the disk does not take it.
    """
    try:
        torch.save(content, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # torch hides it behind an offset that it did not expect
            raise error.__context__ from None
        raise
    file.flush()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint in a file, whichever run's it is, on the CPU.

    Raises:
        CheckpointError: it cannot be read, or is of another format.
    """
    try:
        state = _read(path)
    except Exception as error:  # torch.load raises whatever damage makes it stumble over
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(state, dict) or state.get("format") not in READABLE:
        raise CheckpointError(f"{path}: no checkpoint of a format that this version reads")
    return state


def latest_valid_checkpoint(
    folder: Path, run_key: str, config: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, on the CPU; None if there is none.

    One that is damaged (a full disk, a copy that broke off) is passed over with a warning.

    Raises:
        CheckpointError: the newest readable one is of another run or format; the message names both, and the keys in
            which that run's config differs from `config`.
    """
    for path in _checkpoints(folder):
        try:
            state = _read(path)
        except Exception as error:  # torch.load raises whatever damage makes it stumble over
            warnings.warn(f"{path} cannot be read ({type(error).__name__}: {error}); it is passed over", stacklevel=2)
            continue
        wanted = "move it away, or start over with fresh=true"
        if not isinstance(state, dict) or state.get("format") not in READABLE:
            found = state.get("format") if isinstance(state, dict) else type(state).__name__
            read = " and ".join(map(str, READABLE))
            raise CheckpointError(f"{path}: checkpoint format {found}, this version reads {read}; {wanted}")
        if state.get("run_key") != run_key:
            differs = _differences(state.get("config"), config)
            raise CheckpointError(
                f"{path}: belongs to run {state.get('run_key')}, not to run {run_key}{differs}; {wanted}"
            )
        if state.get("iteration") != _iteration(path):
            raise CheckpointError(f"{path}: holds iteration {state.get('iteration')}; {wanted}")
        return state
    return None


def _differences(stored: Any, config: Mapping[str, Any] | None) -> str:
    """In which keys that make another run the two configs differ, for a message; nothing where that is not known."""
    try:
        other = json.loads(stored) if isinstance(stored, str) else None
    except ValueError:
        return ""
    if not isinstance(other, dict) or not other or config is None:
        return ""
    found = [
        f"{key} ({_shown(one)} there, {_shown(own)} here)"
        for key, one, own in differing(other, json.loads(to_json(config)))
        if key.partition(".")[0] not in VOLATILE and key != f"env.{TIMEOUT}"
    ]
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return f"; their configs differ in {', '.join(found[:LISTED])}{more}" if found else ""


def _shown(value: Any) -> str:
    text = "nothing" if value is ABSENT else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _read(path: Path) -> Any:
    """
    Raises:
        Exception: of whatever kind; the file is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()  # torch.load does not look at the checksums of tensors
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
    return torch.load(path, map_location="cpu", weights_only=True)


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    found = [path for path in folder.glob("iteration-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_iteration, reverse=True)


def _iteration(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is not the name of a checkpoint")
    return int(match[1])
