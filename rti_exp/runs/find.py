"""Which runs a user means: studies under a runs root, and runs by path, by key, or by the beginning of a key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs.bounded import visible
from rti_exp.runs.reader import RunRecord, load_run, load_runs
from rti_exp.runs.status import is_held

LISTED = 20


class NotFound(Exception):
    """No run or study, or several, are meant; the message says what there is."""


def studies(runs_root: Path) -> dict[str, list[RunRecord]]:
    """The studies under a runs root that have runs, by name.

    Raises:
        NotFound: there is no such folder, or no run in it.
    """
    runs_root = runs_root.expanduser()
    folders = sorted(runs_root.iterdir()) if runs_root.is_dir() else []
    found = {path.name: load_runs(path) for path in folders if path.is_dir() and not path.name.startswith(".")}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        raise NotFound(f"there are no runs in {runs_root.resolve()} (see --runs-root)")
    return found


def study_runs(runs_root: Path, name: str | None) -> dict[str, list[RunRecord]]:
    """All studies, or the one of this name.

    Raises:
        NotFound: no such study; the message lists those there are.
    """
    found = studies(runs_root)
    if name is None:
        return found
    if name not in found:
        raise NotFound(f"no study {name!r} in {runs_root}; there are: {_listed(list(found))}")
    return {name: found[name]}


def find_run(runs_root: Path, name: str) -> RunRecord:
    """The run that a name means: a run directory, a run key, `STUDY/KEY`, or the beginning of a key that only one has.

    Raises:
        NotFound: none, or several.
    """
    path = Path(name)
    if (path / "status.json").is_file() or (path / "config.yaml").is_file():
        return load_run(path)
    study, _, key = name.rpartition("/")
    found = study_runs(runs_root, study or None)
    every = [(place, run) for place, runs in found.items() for run in runs]
    matches = [(place, run) for place, run in every if key and run.directory.name.startswith(key)]
    exact = [(place, run) for place, run in matches if run.directory.name == key]
    matches = exact or matches
    if len(matches) == 1:
        return matches[0][1]
    names = [f"{place}/{run.directory.name}" for place, run in matches or every]
    if matches:
        raise NotFound(f"{name!r} is not one run, it may be: {_listed(names)}")
    raise NotFound(f"no run {name!r} in {runs_root}; there are: {_listed(names)}")


def state_of(run: RunRecord) -> str:
    """The run's state; `dead` for one that says it is running while no process holds it."""
    return "dead" if run.state == "running" and not is_held(run.directory) else run.state


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(visible, names[:LISTED])) + more
