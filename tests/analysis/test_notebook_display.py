from __future__ import annotations

from pathlib import Path

from rti_exp.analysis.arm_summary import Summary
from rti_exp.analysis.notebook_display import show, show_charts, show_interventions, show_tables
from rti_exp.analysis.study import Study, load_study
from tests.support import studies


def test_tables_and_charts_are_html(study: Study, summary: Summary) -> None:
    assert "Held-out tasks, last evaluation" in show_tables(study, summary)._repr_html_()
    assert show_charts(study, summary, ["funnel"])._repr_html_().count("<svg") == 1
    assert "Nothing to show" in show()._repr_html_()


def test_interventions_have_escaped_model_text(tmp_path: Path) -> None:
    record = studies.intervention(1, reason=studies.HOSTILE, tokens=["<b>", "x"])
    studies.write_run(tmp_path / "s", studies.config(5, 0), [studies.train(1)], interventions=[record])
    study = load_study(tmp_path / "s")
    html = show_interventions(study, outcome="accepted")._repr_html_()
    assert "<p>1 of 1 interventions.</p>" in html
    assert "<ins>, Kyoto</ins>" in html
    assert "<td>-0.5</td><td>-0.25</td><td>1.25</td>" in html
    assert "&lt;/script&gt;" in html
    assert "<script" not in html
    assert "<b>'" not in html
    assert "&lt;b&gt;" in html
    assert show_interventions(study, outcome="leaked") == "<p>0 of 0 interventions.</p>"
