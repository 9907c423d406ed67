"""A run that is done in one study, taken over into another: equal configs are computed once.

This module imports no torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rti_exp.runs.json_lines import write_atomically
from rti_exp.runs.status import is_done, lock, read_status, write_status

OWN = (".lock", "job.log", "status.json", "config.yaml")
"""What is not taken over as it is."""


def done_elsewhere(directory: Path) -> Path | None:
    """The same run, done, in another study of the same runs root; the first by name, None without one.

    Args:
        directory: `<runs root>/<study>/<run key>` of the run that is wanted.
    """
    for study in sorted(directory.parent.parent.iterdir() if directory.parent.parent.is_dir() else ()):
        candidate = study / directory.name
        if candidate != directory and is_done(candidate):
            return candidate
    return None


def adopt(
    source: Path, directory: Path, *, study: str, config: Mapping[str, Any], overrides: Sequence[str] = ()
) -> bool:
    """Make `directory` the run that is done in `source`, under its own study, config and overrides.

    Checkpoints are linked where the file system can: they are only ever replaced. All else is copied: should this break
    off, the run goes on from what is there, and appends to it. The status comes last, so that what is half taken over
    does not look done.

    Returns:
        False if `source` is not done any more; then nothing is changed.

    Raises:
        RunLocked: another process works in `directory`.
        RunUnwritable: it cannot be made.
        OSError: it cannot be written.
    """
    held = lock(directory)
    try:
        status = read_status(source)
        if status is None or status["state"] != "done":
            return False
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            if path.is_file() and not path.is_symlink() and str(name) not in OWN:
                _take(path, directory / name, link=name.parts[0] == "checkpoints")
        write_atomically(directory / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        own = [text for text in overrides if not text.startswith("hydra.")]
        write_status(directory, {**status, "study": study, "overrides": own, "taken_from": source.parent.name})
    finally:
        os.close(held)
    return True


def _take(source: Path, target: Path, *, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        (os.link if link else shutil.copy2)(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
