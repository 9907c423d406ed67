from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rti_exp.analysis.arm_summary import summarize
from rti_exp.analysis.leaks import is_leaky, leak_charts, leak_table, leaky_shares, merges
from rti_exp.analysis.learning_dynamics import gate_table
from rti_exp.analysis.study import load_study
from rti_exp.analysis.study_charts import report_charts
from rti_exp.analysis.study_tables import study_tables
from tests.support import studies

LEAK: dict[str, Any] = {
    "evidence": "route to 61",
    "task": "Take me to Beacon.",
    "history": "You are in Osaka.",
    "correction": "route 61",
}


@pytest.mark.parametrize(
    ("changes", "leaky"),
    [
        ({}, True),
        ({"correction": "search Beacon"}, False),
        ({"history": "tool: Beacon is place 61"}, False),
        ({"task": "Take me to 61."}, False),
        ({"evidence": None}, False),
        ({"correction": None}, False),
        ({"correction": "search Beacon", "thinking": "It is 61."}, True),
        ({"correction": "search Beacon", "thinking": "Which city?"}, False),
    ],
)
def test_a_leak_is_a_fact_that_only_the_evidence_contains(changes: dict[str, Any], leaky: bool) -> None:
    assert is_leaky({**LEAK, **changes}) is leaky


@pytest.fixture
def study_dir(tmp_path: Path) -> Path:
    """Two seeds; merges in iterations 1, 2, 3, 4 of six, of which 2 and 4 leak in seed 0 and none in seed 1."""
    clean = {**LEAK, "correction": "search Beacon"}
    for seed in (0, 1):
        rows = [studies.evaluation(0, {"ret/0": 1}), *(studies.train(i, {"accepted": 1}) for i in range(1, 7))]
        rows += [studies.evaluation(i, {"ret/0": i}) for i in (3, 6)]
        records = [studies.intervention(i, **(LEAK if seed == 0 and i in (2, 4) else clean)) for i in (1, 2, 3, 4)]
        records.append(studies.intervention(5, "leaked", **LEAK))
        records.append(studies.intervention(6, "too_perplexing", perplexity=8.0))
        studies.write_run(tmp_path / "s", studies.config(5, seed), rows, interventions=records)
    return tmp_path / "s"


def test_leaky_shares_between_evaluations(study_dir: Path) -> None:
    study = load_study(study_dir)
    merged = merges(study)
    assert sorted(merged["iteration"].tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert leaky_shares(merged, [3, 6]) == {3: 1 / 6, 6: 0.5}
    assert leaky_shares(merged, [1, 2]) == {1: 0.0, 2: 0.5}
    assert leak_table(study).rows == (("all runs", "8", "2", "25.0%", "-"),)
    assert [chart.name for chart in leak_charts(study)] == ["leaks_0"]


def test_a_report_shows_leaks_only_if_enough_merges_leak(study_dir: Path, delta_study: Path) -> None:
    for path, leaky in ((study_dir, True), (delta_study, False)):
        study = load_study(path)
        summary = summarize(study)
        assert any(chart.name.startswith("leaks") for chart in report_charts(study, summary)) is leaky
        assert any("that leak" in table.title for table in study_tables(study, summary)) is leaky


def test_no_merge_has_no_share(tmp_path: Path) -> None:
    studies.write_arm_run(tmp_path / "s", 0, 0, [2, 2, 2, 2])
    study = load_study(tmp_path / "s")
    assert leak_table(study).rows == (("all runs", "0", "0", "-", "-"),)
    assert leaky_shares(merges(study), [2]) == {}


def test_the_gate_by_source(study_dir: Path) -> None:
    rows = gate_table(load_study(study_dir)).rows
    assert rows == (("all runs", "self", "12", "2.12", "16.7%", "66.7%"),)
