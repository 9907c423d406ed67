"""A short run reproduces the stored metrics (`python -m tests.guarantees.golden` rewrites them).

On the machine that wrote them every number has to be equal. On another CPU sums round otherwise, by about 1e-6 of a
log-prob. Up to the first update that hardly ever moves a sampled token: counts have to be equal, other numbers to a
thousandth. Adam's first step then divides each gradient by its own size, so that rounding decides the sign where the
gradient is next to nothing, and single tokens may be drawn otherwise: later rows have to be near.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.guarantees.golden import GOLDEN, OVERRIDES, machine, short_run

NEAR = 0.25
"""Of a rate after an update, absolute; of a count, in parts of it."""


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return short_run()


def assert_like(found: Any, wanted: Any, name: str) -> None:
    """Counts and texts exactly, other numbers to a thousandth."""
    if isinstance(wanted, float) and isinstance(found, float):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5), name
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), name
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_like(one, other, f"{name}.{place}")
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), name
        for key in wanted:
            assert_like(found[key], wanted[key], f"{name}.{key}")
    else:
        assert found == wanted, name


def before_an_update(row: dict[str, Any]) -> bool:
    return row["iteration"] == 0 or (row["kind"] == "train" and row["iteration"] == 1)


@pytest.mark.slow
def test_the_golden_run_is_this_one(golden: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    assert golden["overrides"] == list(OVERRIDES)
    shape = [(row["kind"], row["iteration"], list(row)) for row in golden["rows"]]
    assert [(row["kind"], row["iteration"], list(row)) for row in rows] == shape
    first = next(row for row in golden["rows"] if row["kind"] == "train")
    assert min(first["funnel/accepted"], first["funnel/leaked"], first["updates/steps"]) > 0, "it shows too little"


@pytest.mark.slow
def test_on_the_same_machine_every_number_is_equal(golden: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    if machine() != golden["machine"]:
        pytest.skip(f"it was written on another machine: {golden['machine']}, this is {machine()}")
    assert rows == golden["rows"]


@pytest.mark.slow
def test_on_any_machine_the_first_iteration_is_equal_and_the_rest_is_near(
    golden: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    for found, wanted in zip(rows, golden["rows"], strict=True):
        where = f"{wanted['kind']} {wanted['iteration']}"
        if before_an_update(wanted):
            assert_like(found, wanted, where)
            continue
        for name in ("reward/mean", "pass@1", "pass@1/before", "groups/all_failed", "policy/entropy"):
            if wanted.get(name) is not None:
                assert found[name] == pytest.approx(wanted[name], abs=NEAR), f"{where}.{name}"
        for name in ("tokens/generated", "tokens/trained", "funnel/attempts"):
            if wanted.get(name):
                assert found[name] == pytest.approx(wanted[name], rel=2 * NEAR), f"{where}.{name}"
