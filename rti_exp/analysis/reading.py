"""Reads a study's run directories into frames; what cannot be read is listed, never guessed.

Only runs that are done and whole are `usable`, that is, may enter a mean. The file formats are those of
`rti_exp.runs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from rti_exp.analysis import arms
from rti_exp.analysis.interventions import INDEX_COLUMNS, number, number_or_nan, read_index, read_lines
from rti_exp.runs.differences import flatten
from rti_exp.runs.reader import load_yaml

RUN_FILES = ("status.json", "config.yaml", "metrics.jsonl", "job.log")
STATES = ("running", "done", "failed", "interrupted")
COMPUTE = ("generated_tokens", "scored_tokens", "trained_tokens", "seconds")
RUN_COLUMNS = (
    *(
        "run_key",
        "directory",
        "state",
        "usable",
        "why_not",
        "arm",
        "seed",
        "overrides",
        "values",
        "plain_grpo",
        "delta",
    ),
    *("iterations_done", "started", "ended", "error_type", "error_message", *COMPUTE),
)
EVALUATION_COLUMNS = ("run_key", "arm", "seed", "iteration", "split", "task_id", "family", "samples", "successes")


class StudyError(Exception):
    """There is no study where one was named; the message says what is there instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something about a run that a reader must know before trusting the numbers."""

    run: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study's runs as frames.

    runs: one row per run directory, RUN_COLUMNS. `usable` is whether it may enter a mean.
    evaluations: one row per run, evaluation and task, EVALUATION_COLUMNS.
    metrics: one row per run and training iteration: run_key, arm, seed, iteration, the flat metrics.
    probes: the same of the fixed probe's rows.
    interventions: one row per recorded attempt: run_key, arm, seed, INDEX_COLUMNS of
        `rti_exp.analysis.interventions`, which reads the whole record from such a row.
    missing: (arm, seed) that other arms or seeds of the study have, and that has no run directory.
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


def select(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """The rows of `frame` in which each named column has the given value."""
    found: Any = frame
    for column, value in equal.items():
        found = found[found[column] == value]
    return found


@dataclass(slots=True)
class _RawRun:
    """One run directory as found. `damage` keeps a run out of the means, `remarks` do not."""

    path: Path
    status: dict[str, Any]
    config: dict[str, Any]
    train: dict[int, dict[str, float]]
    probes: dict[int, dict[str, float]]
    evaluations: list[dict[str, Any]]
    interventions: list[dict[str, Any]]
    damage: list[str]
    remarks: list[str]


def _read_object(path: Path, parse: Any, damage: list[str]) -> dict[str, Any]:
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        damage.append(f"{path.name} is missing")
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        damage.append(f"{path.name} cannot be read ({type(error).__name__})")
    else:
        if isinstance(value, dict):
            return value
        damage.append(f"{path.name} holds no mapping")
    return {}


def _evaluation_rows(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per task of an evaluation line. Raises KeyError, TypeError or ValueError if it is malformed."""
    iteration, split = int(row["iteration"]), str(row["split"])
    rows = []
    for task in row["tasks"]:
        samples, successes = int(task["samples"]), int(task["successes"])
        if not 0 <= successes <= samples:
            raise ValueError(f"{successes} successes of {samples} samples")
        names = {"task_id": str(task["task_id"]), "family": str(task["family"])}
        rows.append({"iteration": iteration, "split": split, **names, "samples": samples, "successes": successes})
    return rows


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: number(value) for key, value in row.items() if key not in ("kind", "iteration")}


def _read_metrics(run: _RawRun) -> None:
    evaluations: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for _, row in read_lines(run.path / "metrics.jsonl", run.damage):
        try:
            if row["kind"] == "train":
                iteration = int(row["iteration"])
                if iteration in run.train:
                    run.remarks.append(f"metrics.jsonl has iteration {iteration} twice; the last is used")
                run.train[iteration] = _numbers(row)
            elif row["kind"] == "probe":
                run.probes[int(row["iteration"])] = _numbers(row)
            elif row["kind"] == "eval":
                key = (int(row["iteration"]), str(row["split"]))
                if key in evaluations:
                    run.remarks.append(f"metrics.jsonl evaluates iteration {key[0]} twice; the last is used")
                evaluations[key] = _evaluation_rows(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            run.damage.append(f"metrics.jsonl has a malformed line ({type(error).__name__}: {error!s:.80})")
    run.evaluations = [row for rows in evaluations.values() for row in rows]


def _check_whole(run: _RawRun) -> None:
    """A run that says it is done must have a row for each of its iterations."""
    done = run.status.get("iterations_done")
    if run.status.get("state") != "done" or not isinstance(done, int):
        return
    absent = [iteration for iteration in range(1, done + 1) if iteration not in run.train]
    if absent:
        run.damage.append(f"metrics.jsonl lacks {len(absent)} of {done} iterations, the first is {absent[0]}")


def _read_run(path: Path, *, interventions: bool) -> _RawRun:
    run = _RawRun(path, {}, {}, {}, {}, [], [], [], [])
    run.status = _read_object(path / "status.json", json.loads, run.damage)
    run.config = _read_object(path / "config.yaml", load_yaml, run.damage)
    if (path / "metrics.jsonl").exists() or run.status.get("state") == "done":
        _read_metrics(run)
    _check_whole(run)
    if interventions and (path / "interventions.jsonl").exists():
        run.interventions = read_index(path / "interventions.jsonl", run.remarks)
    return run


def _seed(run: _RawRun) -> int | None:
    seed = run.status.get("seed", run.config.get("seed"))
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _run_row(run: _RawRun, flat: arms.Flat, values: Mapping[str, Any]) -> dict[str, Any]:
    state, seed = run.status.get("state"), _seed(run)
    error = run.status.get("error")
    error = error if isinstance(error, dict) else {}
    compute = run.status.get("compute")
    row = {
        "run_key": run.path.name,
        "directory": str(run.path),
        "state": state if state in STATES else "unknown",
        "arm": arms.label(values) if run.config else "unknown",
        "seed": seed,
        "overrides": _texts(run.status.get("overrides")),
        "values": dict(values),
        "plain_grpo": arms.is_plain_grpo(flat),
        "delta": number_or_nan(flat.get("gate.delta")),
        "iterations_done": run.status.get("iterations_done"),
        "started": str(run.status.get("started") or ""),
        "ended": str(run.status.get("ended") or ""),
        "error_type": str(error.get("type") or ""),
        "error_message": str(error.get("message") or ""),
    }
    for name in COMPUTE:
        row[name] = number_or_nan(compute.get(name)) if isinstance(compute, dict) else math.nan
    if seed is None:
        run.damage.append("the seed is unknown")
    if row["state"] == "done" and run.damage:
        row["state"] = "damaged"
    row["usable"] = row["state"] == "done"
    row["why_not"] = "; ".join(run.damage) if row["state"] in ("damaged", "unknown") else ""
    return row


def _set_duplicates_aside(rows: Sequence[dict[str, Any]]) -> None:
    """Of several done runs with one arm and seed the one that ended last is used; the others are shown."""
    chosen: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted((row for row in rows if row["usable"]), key=lambda row: (row["ended"], row["run_key"])):
        previous = chosen.get((row["arm"], row["seed"]))
        if previous is not None:
            previous |= {
                "state": "duplicate",
                "usable": False,
                "why_not": f"same arm and seed as {row['run_key']}, which ended later",
            }
        chosen[row["arm"], row["seed"]] = row


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(list(rows)) if rows else pd.DataFrame(columns=list(columns))


def _ordered_arms(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    keys: dict[str, list[tuple[int, float, str]]] = {}
    for row in rows:
        if row["arm"] != "unknown":
            keys[row["arm"]] = [arms.sort_key(value) for value in row["values"].values()]
    return tuple(sorted(keys, key=lambda arm: keys[arm]))


def _missing(rows: Sequence[Mapping[str, Any]], ordered: Sequence[str]) -> tuple[tuple[str, int], ...]:
    present = {(row["arm"], row["seed"]) for row in rows}
    seeds = sorted({row["seed"] for row in rows if row["seed"] is not None and row["arm"] != "unknown"})
    return tuple((arm, seed) for arm in ordered for seed in seeds if (arm, seed) not in present)


def run_directories(path: Path) -> list[Path]:
    """The directories of `path` that hold at least one file of a run, by name."""
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and any((entry / name).exists() for name in RUN_FILES)
    )


def load_study(path: str | Path, *, interventions: bool = True) -> Study:
    """Reads all runs of a study directory, whatever state they are in.

    `interventions=False` skips the intervention records, which are the bulk of a study's files.
    Raises StudyError if `path` is no directory, or is a single run's.
    """
    path = Path(path)
    if not path.is_dir():
        raise StudyError(f"no such study directory: {path}")
    if (path / "status.json").exists():
        raise StudyError(f"{path} is a single run; its study is {path.resolve().parent}")
    raw = [_read_run(directory, interventions=interventions) for directory in run_directories(path)]
    readable = [run for run in raw if run.config]
    flats = {run.path: flatten(run.config) for run in raw}
    overrides = [_texts(run.status.get("overrides")) for run in readable]
    swept = arms.swept_values([flats[run.path] for run in readable], overrides)
    values = {run.path: value for run, value in zip(readable, swept, strict=True)}
    rows = [_run_row(run, flats[run.path], values.get(run.path, {})) for run in raw]
    _set_duplicates_aside(rows)
    ordered = _ordered_arms(rows)
    tags = [{key: row[key] for key in ("run_key", "arm", "seed")} for row in rows]
    runs = list(zip(raw, tags, strict=True))
    train = [{**tag, "iteration": place, **run.train[place]} for run, tag in runs for place in sorted(run.train)]
    probes = [{**tag, "iteration": place, **run.probes[place]} for run, tag in runs for place in sorted(run.probes)]
    return Study(
        name=path.resolve().name,
        path=path,
        arms=ordered,
        runs=_frame(rows, RUN_COLUMNS),
        evaluations=_frame([tag | row for run, tag in runs for row in run.evaluations], EVALUATION_COLUMNS),
        metrics=_frame(train, ("run_key", "arm", "seed", "iteration")),
        probes=_frame(probes, ("run_key", "arm", "seed", "iteration")),
        interventions=_frame(
            [tag | row for run, tag in runs for row in run.interventions],
            ("run_key", "arm", "seed", *INDEX_COLUMNS),
        ),
        missing=_missing(rows, ordered),
        problems=tuple(
            Problem(run=run.path.name, what=what)
            for run in raw
            for what in (*(run.damage if run.status.get("state") != "done" else ()), *run.remarks)
        ),
    )
