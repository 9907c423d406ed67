"""Reads the files of one run directory, in whatever state the run left them.

Intervention records can be gigabytes of model text. Tables and charts need a few numbers of each, so the records are
indexed, and a whole record is read on demand.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rti_exp.runs.bounded import MAX_BYTES, bounded, load_yaml, read_text, visible, whole_number

INDEX_COLUMNS = ("iteration", "outcome", "family", "source", "perplexity", "rho_T", "path", "offset")
Row = dict[str, Any]
Metrics = dict[int, dict[str, float]]
"""iteration -> metric -> value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The contents of a run directory.

    train, probes: the latest metrics row of each iteration.
    evaluations: one row per evaluation and task.
    interventions: INDEX_COLUMNS of each record.
    damage: faults that exclude the run from every mean.
    remarks: faults that do not.
    """

    path: Path
    status: Row
    config: Row
    train: Metrics
    probes: Metrics
    evaluations: list[Row]
    interventions: list[Row]
    damage: tuple[str, ...]
    remarks: tuple[str, ...]


def number(value: Any) -> float:
    """A number as runs write it: null is NaN, "inf" is infinity.

    Raises:
        ValueError: any other value.
    """
    if value is None:
        return math.nan
    if isinstance(value, int | float) or value in ("inf", "-inf", "nan"):
        try:
            return float(value)
        except OverflowError:
            raise ValueError("an integer that is too large") from None
    raise ValueError(f"not a number: {value!r:.80}")


def number_or_nan(value: Any) -> float:
    try:
        return number(value)
    except ValueError:
        return math.nan


def read_run(path: Path, *, interventions: bool) -> RunFiles:
    """Reads a run directory; faults are listed, not raised. `interventions=False` skips the intervention records."""
    damage: list[str] = []
    remarks: list[str] = []
    status = _read_mapping(path / "status.json", _bounded_json, damage)
    config = _read_mapping(path / "config.yaml", load_yaml, damage)
    train: Metrics = {}
    probes: Metrics = {}
    evaluations: dict[tuple[int, str], list[Row]] = {}
    if (path / "metrics.jsonl").exists() or status.get("state") == "done":
        for _, row in read_objects(path / "metrics.jsonl", damage):
            try:
                _add_metrics_row(bounded(row), train, probes, evaluations, remarks)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                damage.append(f"metrics.jsonl has a malformed line ({type(error).__name__}: {error!s:.80})")
    damage += _missing_iterations(status, train)
    records = path / "interventions.jsonl"
    return RunFiles(
        path=path,
        status=status,
        config=config,
        train=train,
        probes=probes,
        evaluations=[row for rows in evaluations.values() for row in rows],
        interventions=read_index(records, remarks) if interventions and records.exists() else [],
        damage=tuple(damage),
        remarks=tuple(remarks),
    )


def _read_mapping(path: Path, parse: Callable[[str], Any], damage: list[str]) -> Row:
    try:
        value = parse(read_text(path))
    except FileNotFoundError:
        damage.append(f"{path.name} is missing")
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        damage.append(f"{path.name} cannot be read ({type(error).__name__}: {visible(error):.80})")
    else:
        if isinstance(value, dict):
            return value
        damage.append(f"{path.name} does not contain a mapping")
    return {}


def _bounded_json(text: str) -> Any:
    return bounded(json.loads(text))


def _add_metrics_row(
    row: Row, train: Metrics, probes: Metrics, evaluations: dict[tuple[int, str], list[Row]], remarks: list[str]
) -> None:
    """
    Raises:
        KeyError, TypeError, ValueError, AttributeError: the row is malformed.
    """
    if row["kind"] in ("train", "probe"):
        iteration = whole_number(row["iteration"])
        numbers = {key: number(value) for key, value in row.items() if key not in ("kind", "iteration")}
        if row["kind"] == "train" and iteration in train:
            remarks.append(f"metrics.jsonl has iteration {iteration} twice; the later row is used")
        (train if row["kind"] == "train" else probes)[iteration] = numbers
    elif row["kind"] == "eval":
        key = (whole_number(row["iteration"]), str(row["split"]))
        if key in evaluations:
            remarks.append(f"metrics.jsonl evaluates iteration {key[0]} twice; the later row is used")
        evaluations[key] = [_task_row(*key, task) for task in row["tasks"]]


def _task_row(iteration: int, split: str, task: Row) -> Row:
    samples, successes = whole_number(task["samples"]), whole_number(task["successes"])
    if not 0 <= successes <= samples:
        raise ValueError(f"{successes} successes of {samples} samples")
    return {
        "iteration": iteration,
        "split": split,
        "task_id": str(task["task_id"]),
        "family": str(task["family"]),
        "samples": samples,
        "successes": successes,
    }


def _missing_iterations(status: Row, train: Metrics) -> list[str]:
    """A finished run must have a row for each of its iterations."""
    done = status.get("iterations_done")
    if status.get("state") != "done" or not isinstance(done, int):
        return []
    missing = done - sum(1 <= iteration <= done for iteration in train)
    if missing <= 0:
        return []
    first = next(iteration for iteration in range(1, done + 1) if iteration not in train)
    return [f"metrics.jsonl lacks {missing} of {done} iterations; the first is {first}"]


def read_objects(path: Path, faults: list[str]) -> Iterator[tuple[int, Row]]:
    """(byte offset, object) of each line of a .jsonl file. Lines without an object (a torn one, say) go to `faults`."""
    offset = 0
    try:
        if not path.is_file() and path.exists():  # a pipe would never end
            faults.append(f"{path.name} is not a regular file")
            return
        with path.open("rb") as lines:
            for count, line in enumerate(iter(functools.partial(lines.readline, MAX_BYTES), b""), start=1):
                start, offset = offset, offset + len(line)
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    faults.append(f"{path.name}, line {count} is torn")
                    continue
                if not isinstance(value, dict):
                    faults.append(f"{path.name}, line {count} is not an object")
                elif value.get("capped"):
                    faults.append(f"{path.name} reached its size cap in iteration {value.get('iteration')}")
                else:
                    yield start, value
    except FileNotFoundError:
        faults.append(f"{path.name} is missing")
    except OSError as error:
        faults.append(f"{path.name} cannot be read ({type(error).__name__})")


def _finite_numbers(values: Any) -> NDArray[np.float32]:
    numbers = [number_or_nan(value) for value in values] if isinstance(values, list) else []
    return np.array([value for value in numbers if math.isfinite(value)], dtype=np.float32)


def read_index(path: Path, faults: list[str]) -> list[Row]:
    """INDEX_COLUMNS of each record. rho_T [T]: weights of the correction's tokens; empty without a correction."""
    return [
        {
            "iteration": number_or_nan(record.get("iteration")),
            "outcome": str(record.get("outcome")),
            "family": str(record.get("family")),
            "source": str(record.get("source") or "unknown"),
            "perplexity": number_or_nan(record.get("perplexity")),
            "rho_T": _finite_numbers(record.get("weights")),
            "path": path,
            "offset": offset,
        }
        for offset, record in read_objects(path, faults)
    ]


def read_record(row: Mapping[str, Any]) -> Row:
    """The whole record of an index row. If the file has changed since, the indexed fields and an `error`."""
    try:
        with row["path"].open("rb") as file:
            file.seek(row["offset"])
            return json.loads(file.readline())
    except (OSError, ValueError) as error:  # a live run may have rewritten its file since it was indexed
        names = {name: row[name] for name in ("iteration", "outcome", "family", "source")}
        return {**names, "error": f"the record could not be read again ({type(error).__name__})"}
