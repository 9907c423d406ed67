"""Reads interventions.jsonl: an index that is small enough for a whole study, and single records on demand.

A study's records may be gigabytes of model text; tables and charts need a few numbers of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX_COLUMNS = ("iteration", "outcome", "family", "source", "perplexity", "rho_T", "path", "offset")


def number(value: Any) -> float:
    """A number as runs write it: null is NaN, "inf" infinity. Raises ValueError for anything else."""
    if value is None:
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    if value in ("inf", "-inf", "nan"):
        return float(value)
    raise ValueError(f"not a number: {value!r:.80}")


def number_or_nan(value: Any) -> float:
    try:
        return number(value)
    except ValueError:
        return math.nan


def finite_numbers(values: Any) -> NDArray[np.float32]:
    """The finite numbers of a list; empty if it is none."""
    found = [number_or_nan(value) for value in values] if isinstance(values, list) else []
    return np.array([value for value in found if math.isfinite(value)], dtype=np.float32)


def read_lines(path: Path, faults: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(byte offset, object) of each line of a .jsonl file; lines that are none (torn by a kill, say) go to `faults`."""
    offset = 0
    try:
        with path.open("rb") as lines:
            for place, line in enumerate(lines, start=1):
                start, offset = offset, offset + len(line)
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    faults.append(f"{path.name}, line {place} is torn")
                    continue
                if not isinstance(value, dict):
                    faults.append(f"{path.name}, line {place} holds no object")
                elif value.get("capped"):
                    faults.append(f"{path.name} reached its size cap in iteration {value.get('iteration')}")
                else:
                    yield start, value
    except FileNotFoundError:
        faults.append(f"{path.name} is missing")
    except OSError as error:
        faults.append(f"{path.name} cannot be read ({type(error).__name__})")


def read_index(path: Path, faults: list[str]) -> list[dict[str, Any]]:
    """INDEX_COLUMNS of each record. rho_T [T] are the weights of the correction's tokens, empty for none."""
    return [
        {
            "iteration": number_or_nan(record.get("iteration")),
            "outcome": str(record.get("outcome")),
            "family": str(record.get("family")),
            "source": str(record.get("source") or "unknown"),
            "perplexity": number_or_nan(record.get("perplexity")),
            "rho_T": finite_numbers(record.get("weights")),
            "path": path,
            "offset": offset,
        }
        for offset, record in read_lines(path, faults)
    ]


def read_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """The whole record of a row of the index."""
    with row["path"].open("rb") as file:
        file.seek(row["offset"])
        return json.loads(file.readline())
