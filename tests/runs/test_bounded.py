"""Files that anyone may have written are read in bounded time and memory, or refused with a reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rti_exp.runs import bounded
from rti_exp.runs.bounded import load_yaml, read_text, visible, whole_number
from tests.support.hostile_files import ALIASES, MERGES


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ALIASES, "more than 100000 values"),
        (MERGES, "merge keys are not read"),
        ("a: &a [*a]", "nested more than 50 deep"),
        ("a: &a {b: *a}", "nested more than 50 deep"),
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("[" * 5000, "nesting"),
        ("- x\n" * 200_000, "more than 100000 values"),
        ("#" * 2**21, "more than 1048576 characters"),
        ("a: 1" + "0" * 400, "holds an integer that is too large"),
        ("2001-01-01", "holds a date"),
        ("!!binary aGk=", "holds a bytes"),
        ("!!set {a}", "holds a set"),
        ("!!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("[", "expected"),
    ],
)
def test_hostile_yaml_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises((yaml.YAMLError, ValueError, RecursionError), match=why):
        load_yaml(text)


def test_the_yaml_of_configs_is_read() -> None:
    shared = {"b": [1, 2.5, None, True, "x"], "delta": float("inf")}
    assert load_yaml(yaml.safe_dump({"first": shared, "second": shared})) == {"first": shared, "second": shared}


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_text(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(bounded.MAX_BYTES + 1)
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        read_text(tmp_path / "sparse")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400, -1, "x"])
def test_other_values_are_no_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a whole number|cannot convert|not from 0|invalid literal"):
        whole_number(value)


def test_whole_numbers() -> None:
    assert [whole_number(value) for value in (0, 3.0, "7", 2**53)] == [0, 3, 7, 2**53]


def test_a_name_is_shown_without_what_a_terminal_obeys() -> None:
    assert visible("a\x1b[2Jb\n\udcff\u202e é") == "a\\x1b[2Jb\\n\\udcff\\u202e é"
