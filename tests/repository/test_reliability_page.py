"""docs/reliability.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
if not PAGE.is_file():
    pytest.skip("the docs are part of the checkout", allow_module_level=True)


def named_tests(text: str) -> list[tuple[str, str]]:
    """(file or folder, test) of every name in backticks; `::test_x` continues the file that was named last."""
    names = []
    file = ""
    for name in re.findall(r"`([\w/.]*(?:test_\w+\.py|/)(?:::\w+)?|::\w+)`", text):
        path, _, test = name.partition("::")
        file = path or file
        names.append((file, test))
    return names


def defined(file: str, test: str) -> bool:
    paths = [
        path for path in (ROOT / "tests").rglob("*") if f"/{path.relative_to(ROOT)}".endswith(f"/{file.rstrip('/')}")
    ]
    return any(not test or f"\ndef {test}(" in path.read_text(encoding="utf-8") for path in paths)


def test_every_named_test_exists() -> None:
    names = named_tests(
        "\n".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    )
    assert len(names) > 50
    assert [f"{file}::{test}" for file, test in names if not defined(file, test)] == []


def test_a_missing_test_is_noticed() -> None:
    assert named_tests("| `test_a.py::test_b`, `::test_c`, `objective/` |") == [
        ("test_a.py", "test_b"),
        ("test_a.py", "test_c"),
        ("objective/", ""),
    ]
    assert not defined("test_reliability_page.py", "test_of_nothing")
    assert not defined("test_of_nothing.py", "")
