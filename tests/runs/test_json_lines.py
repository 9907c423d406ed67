"""Strict JSON on disk, also on a full one."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from rti_exp.runs.json_lines import LineFile, plain, read_lines, to_json, write_atomically
from rti_exp.types import Author, Check, Outcome


def test_json_is_strict() -> None:
    assert to_json({"a": math.inf, "b": -math.inf, "c": math.nan, "d": [1.5, None, True]}) == (
        '{"a": "inf", "b": "-inf", "c": null, "d": [1.5, null, true]}'
    )
    assert to_json({"author": Author.CORRECTOR, "outcome": Outcome.LEAKED}) == '{"author": 2, "outcome": "leaked"}'
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json({"a": object()})


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": MappingProxyType({"b": math.nan}), "c": (1, 2)}, '{"a": {"b": null}, "c": [1, 2]}'),
        ({"a": frozenset([3]), "b": Path("x") / "y", "c": {4: -0.0}}, '{"a": [3], "b": "x/y", "c": {"4": -0.0}}'),
        ({Outcome.LEAKED: [math.inf], (1, 2): 1e300}, '{"leaked": ["inf"], "(1, 2)": 1e+300}'),
        (
            Check(name="leak", judge="rule", passed=True),
            '{"name": "leak", "judge": "rule", "passed": true, "answer": "", "failure": null}',
        ),
        ({"\u00e9": "\n\U0001f600"}, '{"\u00e9": "\\n\U0001f600"}'),
    ],
)
def test_json_of_all_kinds_of_values(value: Any, line: str) -> None:
    """Also where the quick way finds what it cannot write."""
    assert to_json(value) == line
    assert json.loads(line) == plain(value)


def test_json_of_numpy_values() -> None:
    numpy = pytest.importorskip("numpy")
    assert to_json({"a": numpy.float32(0.5), "b": numpy.array([1, 2]), "c": numpy.float64("nan")}) == (
        '{"a": 0.5, "b": [1, 2], "c": null}'
    )


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_torn_last_line_is_cut_before_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n{"iteration": 2, "kin')
    assert list(read_lines(path)) == [{"iteration": 1}]
    file = LineFile(path)
    file.append([{"iteration": 2}, {"iteration": 3}])
    file.close()
    assert path.read_bytes() == b'{"iteration": 1}\n{"iteration": 2}\n{"iteration": 3}\n'


def test_a_broken_line_in_the_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\nnonsense\n{"iteration": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2"):
        list(read_lines(path))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "metrics.jsonl")
    file.append([{"iteration": 1}])
    real = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        real(descriptor, data[: len(data) // 2], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space left"):
        file.append([{"iteration": 2}])
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"iteration": 1}\n'
