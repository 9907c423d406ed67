"""A study's runs as data frames. What cannot be read is listed, never guessed.

Only runs that are done and complete are `usable`: means are computed from these alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from rti_exp.analysis import arms
from rti_exp.analysis.run_files import INDEX_COLUMNS, Metrics, RunFiles, number_or_nan, read_run
from rti_exp.runs import COMPUTE, STATES
from rti_exp.runs.bounded import MAX_INTEGER, visible
from rti_exp.runs.differences import Flat, flatten

MAX_LISTED = 20
RUN_FILES = ("status.json", "config.yaml", "metrics.jsonl", "job.log")
TAG_COLUMNS = ("run_key", "arm", "seed")
EVALUATION_COLUMNS = (*TAG_COLUMNS, "iteration", "split", "task_id", "family", "samples", "successes")
RUN_COLUMNS = (
    *("run_key", "directory", "state", "usable", "why_not", "arm", "seed", "overrides", "values"),
    *("plain_grpo", "delta", "iterations_done", "started", "ended", "error_type", "error_message", *COMPUTE),
)


class StudyError(Exception):
    """The path is not a study; the message says what is there instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A fault of a run that readers must know before they trust the numbers."""

    run: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study's runs as frames.

    arms: labels, in display order.
    runs: one row per run directory, RUN_COLUMNS. `usable`: the run enters means.
    evaluations: one row per run, evaluation and task, EVALUATION_COLUMNS.
    metrics: one row per run and training iteration: TAG_COLUMNS, iteration, all metrics.
    probes: the same for the rows of the fixed probe.
    interventions: one row per recorded attempt: TAG_COLUMNS and INDEX_COLUMNS of `rti_exp.analysis.run_files`, whose
        `read_record` reads the whole record of such a row.
    missing: (arm, seed) pairs without a run directory, for seeds that other arms have.
    """

    name: str
    path: Path
    arms: tuple[str, ...]
    runs: pd.DataFrame
    evaluations: pd.DataFrame
    metrics: pd.DataFrame
    probes: pd.DataFrame
    interventions: pd.DataFrame
    missing: tuple[tuple[str, int], ...]
    problems: tuple[Problem, ...]

    @property
    def usable_runs(self) -> pd.DataFrame:
        return select(self.runs, usable=True)

    def of_usable(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of `frame` that belong to usable runs."""
        usable: Any = frame[frame["run_key"].isin(self.usable_runs["run_key"].tolist())]
        return usable

    @property
    def title(self) -> str:
        plural = "" if len(self.runs) == 1 else "s"
        return f"Study {self.name}: {len(self.runs)} run{plural}, {len(self.usable_runs)} in the means"


def select(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows of `frame` in which each named column has the given value."""
    rows: Any = frame
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `frame` as dicts with text keys."""
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def run_directories(path: Path) -> list[Path]:
    """The directories in `path` that contain at least one file of a run, sorted by name."""
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and any((entry / name).exists() for name in RUN_FILES)
    )


def load_study(path: str | Path, *, interventions: bool = True) -> Study:
    """Reads all runs of a study directory, whatever their state.

    `interventions=False` skips the intervention records, which are most of a study's bytes.

    Raises:
        StudyError: `path` is not a directory, or is the directory of a single run.
    """
    path = Path(path)
    if not path.is_dir():
        raise StudyError(f"no such study directory: {visible(path)}")
    if (path / "status.json").exists():
        raise StudyError(f"{visible(path)} is a single run; its study is {visible(path.resolve().parent)}")
    runs = [read_run(directory, interventions=interventions) for directory in run_directories(path)]
    rows = _run_rows(runs)
    _mark_duplicates(rows)
    ordered = _ordered_arms(rows)
    tags = [{key: row[key] for key in TAG_COLUMNS} for row in rows]
    evaluations = [tag | row for run, tag in zip(runs, tags, strict=True) for row in run.evaluations]
    index = [tag | row for run, tag in zip(runs, tags, strict=True) for row in run.interventions]
    return Study(
        name=visible(path.resolve().name),
        path=path,
        arms=ordered,
        runs=_frame(rows, RUN_COLUMNS),
        evaluations=_frame(evaluations, EVALUATION_COLUMNS),
        metrics=_metrics_frame([run.train for run in runs], tags),
        probes=_metrics_frame([run.probes for run in runs], tags),
        interventions=_frame(index, (*TAG_COLUMNS, *INDEX_COLUMNS)),
        missing=_missing(rows, ordered),
        problems=tuple(
            Problem(run=visible(run.path.name), fault=fault)
            for run in runs
            for fault in (*(run.damage if run.status.get("state") != "done" else ()), *run.remarks)
        ),
    )


def _run_rows(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    flats = [flatten(run.config) for run in runs]
    readable = [place for place, run in enumerate(runs) if run.config]
    swept = arms.swept_values(
        [flats[place] for place in readable], [_texts(runs[place].status.get("overrides")) for place in readable]
    )
    values = dict(zip(readable, swept, strict=True))
    return [_run_row(run, flats[place], values.get(place, {})) for place, run in enumerate(runs)]


def _run_row(run: RunFiles, flat: Flat, values: Mapping[str, Any]) -> dict[str, Any]:
    status = run.status
    error, compute = (_mapping(status.get(key)) for key in ("error", "compute"))
    seed = status.get("seed", run.config.get("seed"))
    seed = seed if isinstance(seed, int) and not isinstance(seed, bool) and abs(seed) <= MAX_INTEGER else None
    damage = [*run.damage, *(["the seed is unknown"] if seed is None else [])]
    state = status.get("state") if status.get("state") in STATES else "unknown"
    state = "damaged" if state == "done" and damage else state
    return {
        "run_key": visible(run.path.name),
        "directory": str(run.path),
        "state": state,
        "usable": state == "done",
        "why_not": "; ".join(damage) if state in ("damaged", "unknown") else "",
        "arm": arms.label(values) if run.config else "unknown",
        "seed": seed,
        "overrides": _texts(status.get("overrides")),
        "values": dict(values),
        "plain_grpo": arms.is_plain_grpo(flat),
        "delta": number_or_nan(flat.get("gate.delta")),
        "iterations_done": status.get("iterations_done"),
        "started": str(status.get("started") or ""),
        "ended": str(status.get("ended") or ""),
        "error_type": str(error.get("type") or ""),
        "error_message": str(error.get("message") or ""),
        **{name: number_or_nan(compute.get(name)) for name in COMPUTE},
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _mark_duplicates(rows: Sequence[dict[str, Any]]) -> None:
    """Of several finished runs with the same arm and seed, only the one that ended last stays usable."""
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted((row for row in rows if row["usable"]), key=lambda row: (row["ended"], row["run_key"])):
        earlier = latest.get((row["arm"], row["seed"]))
        if earlier is not None:
            reason = f"same arm and seed as {row['run_key']}, which ended later"
            earlier |= {"state": "duplicate", "usable": False, "why_not": reason}
        latest[row["arm"], row["seed"]] = row


def _ordered_arms(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    keys = {
        row["arm"]: [arms.sort_key(value) for value in row["values"].values()]
        for row in rows
        if row["arm"] != "unknown"
    }
    return tuple(sorted(keys, key=lambda arm: keys[arm]))


def _missing(rows: Sequence[Mapping[str, Any]], ordered: Sequence[str]) -> tuple[tuple[str, int], ...]:
    present = {(row["arm"], row["seed"]) for row in rows}
    seeds = sorted({row["seed"] for row in rows if row["seed"] is not None and row["arm"] != "unknown"})
    return tuple((arm, seed) for arm in ordered for seed in seeds if (arm, seed) not in present)


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows)) if rows else pd.DataFrame(columns=list(columns))


def _metrics_frame(metrics: Sequence[Metrics], tags: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows = [
        {**tag, "iteration": iteration, **by_iteration[iteration]}
        for by_iteration, tag in zip(metrics, tags, strict=True)
        for iteration in sorted(by_iteration)
    ]
    return _frame(rows, (*TAG_COLUMNS, "iteration"))


def find_study(name: str, runs_root: Path) -> Path:
    """The study directory that a name under the runs root, or a path, refers to.

    Raises:
        StudyError: there is none; the message lists the studies.
    """
    runs_root = runs_root.expanduser()
    for path in (runs_root / name, Path(name).expanduser()):
        if path.is_dir() and (run_directories(path) or (path / "status.json").exists()):
            return path
    entries = sorted(runs_root.iterdir()) if runs_root.is_dir() else []
    studies = [entry.name for entry in entries if entry.is_dir() and run_directories(entry)]
    if not studies:
        raise StudyError(f"no study {name!r}: there are no runs in {runs_root.resolve()} (see --runs-root)")
    close = difflib.get_close_matches(name, studies, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(studies) - MAX_LISTED} more" if len(studies) > MAX_LISTED else ""
    raise StudyError(
        f"no study {name!r} in {visible(runs_root)}.{hint} Studies: "
        f"{', '.join(map(visible, studies[:MAX_LISTED]))}{more}"
    )
