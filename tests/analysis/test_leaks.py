from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rti_exp.analysis.cards import show_interventions
from rti_exp.analysis.dynamics import gate_sheet, intervened_charts, probe_charts
from rti_exp.analysis.figures import inline_svg
from rti_exp.analysis.gallery import gallery
from rti_exp.analysis.leaks import is_leaky, leak_charts, leak_sheet, leaky_shares, merges
from rti_exp.analysis.reading import load_study
from rti_exp.analysis.sheets import sheets
from rti_exp.analysis.summary import summarize
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
def test_a_leak_is_what_only_the_evidence_told(changes: dict[str, Any], leaky: bool) -> None:
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
    found = merges(study)
    assert sorted(found["iteration"].tolist()) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert leaky_shares(found, [3, 6]) == {3: 1 / 6, 6: 0.5}
    assert leaky_shares(found, [1, 2]) == {1: 0.0, 2: 0.5}
    assert leak_sheet(study).rows == (("all runs", "8", "2", "25.0%", "-"),)
    assert [chart.name for chart in leak_charts(study)] == ["leaks_0"]


def test_a_report_shows_leaks_where_they_are_merged(study_dir: Path, tmp_path: Path) -> None:
    study = load_study(study_dir)
    summary = summarize(study)
    assert [chart.name for chart in gallery(study, summary)][-1] == "leaks_0"
    assert any("that leak" in sheet.title for sheet in sheets(study, summary))
    clean = studies.write_delta_study(tmp_path / "clean")
    study, summary = load_study(clean), summarize(load_study(clean))
    assert not any(chart.name.startswith("leaks") for chart in gallery(study, summary))
    assert not any("that leak" in sheet.title for sheet in sheets(study, summary))


def test_no_merge_has_no_share(tmp_path: Path) -> None:
    studies.write_arm_run(tmp_path / "s", 0, 0, [2, 2, 2, 2])
    study = load_study(tmp_path / "s")
    assert leak_sheet(study).rows == (("all runs", "0", "0", "-", "-"),)
    assert leaky_shares(merges(study), [2]) == {}


def test_the_gate_by_source(study_dir: Path) -> None:
    rows = gate_sheet(load_study(study_dir)).rows
    assert rows == (("all runs", "self", "12", "2.12", "16.7%", "66.7%"),)


def test_probes_are_read_and_drawn(tmp_path: Path) -> None:
    study_dir = studies.write_delta_study(tmp_path / "s")
    assert probe_charts(load_study(study_dir)) == []
    studies.add_probes(study_dir)
    study = load_study(study_dir)
    assert set(study.probes["perplexity"].tolist()) == {4.0, 2.0}
    assert [chart.caption.partition(";")[0] for chart in probe_charts(study)] == [
        "Fixed probe, all families: perplexity of right actions",
        "Fixed probe, ret: perplexity of right actions",
    ]
    assert "mathdefault" not in inline_svg(probe_charts(study)[0])


def test_perplexity_of_intervened_steps_is_drawn_where_there_is_some(tmp_path: Path) -> None:
    rows = [studies.evaluation(0, {"ret/0": 1}), studies.train(1) | {"correction/perplexity_median": 3.0}]
    studies.write_run(tmp_path / "s", studies.config(5, 0), rows)
    assert [chart.name for chart in intervened_charts(load_study(tmp_path / "s"))] == ["intervened_0"]


def test_a_card_escapes_model_text(tmp_path: Path) -> None:
    record = studies.intervention(1, reason=studies.HOSTILE, tokens=["<b>", "x"])
    studies.write_run(tmp_path / "s", studies.config(5, 0), [studies.train(1)], interventions=[record])
    shown = show_interventions(load_study(tmp_path / "s"), outcome="accepted")._repr_html_()
    assert "<p>1 of 1 interventions.</p>" in shown
    assert "<ins>, Kyoto</ins>" in shown
    assert "<td>-0.5</td><td>-0.25</td><td>1.25</td>" in shown
    assert "&lt;/script&gt;" in shown
    assert "<script" not in shown
    assert "<b>'" not in shown
    assert show_interventions(load_study(tmp_path / "s"), outcome="leaked").text == "<p>0 of 0 interventions.</p>"
