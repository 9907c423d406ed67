"""Checkpoint files: written atomically, safe to load, the newest two kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

from rti_exp.config.check import TIMEOUT, VOLATILE
from rti_exp.runs.differences import ABSENT, differing
from rti_exp.runs.disk import Staged, sync_folder, write_whole
from rti_exp.runs.json_lines import to_json
from rti_exp.training.archive import Image, UnfitError

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
    taken = Checkpointer(folder, run_key, config).take(state, previous=previous)
    try:
        taken.publish()
    except BaseException:
        taken.discard()
        raise
    return taken.path


class Checkpointer:
    """Writes the checkpoints of a run, one after the other, each in two parts.

    `take` copies the state, into memory that is kept from one to the next; `publish` of what it returns does the rest,
    in another thread if need be. A state that is too large to be held twice is written by `take`.
    """

    def __init__(self, folder: Path, run_key: str, config: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._head = {"format": FORMAT, "run_key": run_key, "config": to_json(config or {})}
        self._image = Image()

    def take(self, state: Mapping[str, Any], *, previous: int) -> Taken:
        """What `save_checkpoint` writes. The one that was taken before must be published, or given up, by now.

        Raises:
            OSError: the disk does not take it; then nothing is left of it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for damaged in _checkpoints(self.folder):
            if _iteration(damaged) > previous:
                damaged.unlink()
        path = checkpoint_path(self.folder, state["iteration"])
        temporary = path.with_suffix(".tmp")
        content = {**self._head, **state}
        try:
            self._image.fill(content)
        except UnfitError:
            return _written(path, temporary, content)
        return Taken(path, partial(self._write, path, temporary), partial(_remove, temporary))

    def _write(self, path: Path, temporary: Path) -> None:
        write_whole(temporary, *self._image.seal())
        os.replace(temporary, path)


class Taken:
    """A checkpoint that has no name yet.

    Args:
        path: The name that `publish` gives it.
        put: Waits until the disk has it under that name.
        discard: Removes what `put` has left when it failed, or what it would have begun with.
    """

    def __init__(self, path: Path, put: Callable[[], object], discard: Callable[[], object]) -> None:
        self.path = path
        self._put = put
        self.discard = discard

    def publish(self) -> None:
        """Wait for the disk, give the checkpoint its name, and drop all but the newest two.

        Raises:
            OSError: the disk does not take it.
        """
        self._put()
        folder = self.path.parent
        sync_folder(folder)
        for old in _checkpoints(folder)[KEPT:]:
            old.unlink()
        for left in folder.glob("iteration-*.tmp"):
            left.unlink()


def _written(path: Path, temporary: Path, content: Mapping[str, Any]) -> Taken:
    """Written at once, as `torch.save` does it."""
    staged = Staged(path, temporary)
    try:
        _write(staged.file, content)
    except BaseException:
        staged.discard()
        raise
    return Taken(path, staged.publish, staged.discard)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # on a broken disk the first error counts
        path.unlink(missing_ok=True)


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
