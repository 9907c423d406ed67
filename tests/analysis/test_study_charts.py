from __future__ import annotations

import builtins
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rti_exp.analysis import study_charts
from rti_exp.analysis.arm_summary import summarize
from rti_exp.analysis.chart_rendering import Chart, NoFigures, inline_svg, save
from rti_exp.analysis.study import Study, load_study
from rti_exp.analysis.training_curves import arm_colours, evaluation_series, metric_series
from tests.support import studies


def charts_of(study: Study) -> dict[str, Chart]:
    return {chart.name: chart for chart in study_charts.study_charts(study, summarize(study))}


@pytest.fixture(scope="module")
def charts(study: Study) -> dict[str, Chart]:
    return charts_of(study)


def test_every_chart_with_data_is_there(charts: dict[str, Chart]) -> None:
    assert list(charts) == [
        *("headline", "heldout_pass_1", "heldout_pass_8", "training_reward", "pass_before", "all_failed"),
        *("funnel", "perplexity", "rho", "compute"),
    ]


def test_a_study_without_finished_runs_has_no_charts(tmp_path: Path) -> None:
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    assert charts_of(load_study(tmp_path)) == {}


def test_series_contain_finite_values_of_usable_runs_only(study: Study) -> None:
    assert evaluation_series(study, 1) == {
        "gate.delta=0": {0: {0: 0.125, 2: 0.25}, 1: {0: 0.125, 2: 0.5}},
        "gate.delta=5": {0: {0: 0.125, 2: 0.75}, 1: {0: 0.125, 2: 0.875}},
        "gate.delta=inf": {0: {0: 0.125, 2: 0.5}},
    }
    assert metric_series(study, "reward/mean")["gate.delta=inf"] == {0: {1: 0.25, 2: 0.5}}
    assert metric_series(study, "no/such") == {}
    assert metric_series(study, "correction/accepted_perplexity_mean") == {}


def test_the_caption_mentions_the_band_only_with_several_seeds(charts: dict[str, Chart], tmp_path: Path) -> None:
    assert charts["heldout_pass_1"].caption == "Held-out pass@1 over training; the band spans the seeds."
    studies.write_arm_run(tmp_path, 5, 0, [2, 2, 2, 2])
    assert charts_of(load_study(tmp_path))["heldout_pass_1"].caption == "Held-out pass@1 over training."


def test_the_gates_of_the_arms_are_drawn(study: Study, charts: dict[str, Chart]) -> None:
    assert study_charts.gates(study) == [5.0]
    assert "gate 5" in inline_svg(charts["perplexity"])
    assert study_charts.perplexities(study) == {"self": [math.exp(0.75)] * 9}


def test_an_inline_chart_is_well_formed_and_loads_nothing(charts: dict[str, Chart]) -> None:
    for name, chart in charts.items():
        text = inline_svg(chart)
        root = ElementTree.fromstring(text)
        ids = [node.attrib["id"] for node in root.iter() if node.get("id")]
        assert all(node_id.startswith(f"{name}-") for node_id in ids)
        assert len(ids) == len(set(ids))
        assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
        assert all(node_id in ids for node_id in re.findall(r"url\(#([^)]*)\)", text))
        assert "currentColor" in text


def test_labels_are_text_in_the_svg(tmp_path: Path) -> None:
    for prompt in ("<script>alert(1)</script>", "$x^2$ & more"):
        settings = studies.config(5, 0, prompt=prompt)
        studies.write_run(tmp_path, settings, [studies.evaluation(1, {"a/0": 4}), studies.train(1)])
    text = inline_svg(charts_of(load_study(tmp_path))["headline"])
    assert "<script>" not in text
    labels = [node.text for node in ElementTree.fromstring(text).iter() if node.tag.endswith("text")]
    assert {"prompt=<script>alert(1)</script>", "prompt=$x^2$ & more"} <= set(labels)


def test_charts_are_saved_twice_and_the_svg_is_reproducible(charts: dict[str, Chart], tmp_path: Path) -> None:
    png, svg = save(charts["headline"], tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    save(charts["headline"], tmp_path)
    assert svg.read_bytes() == first


def test_a_missing_matplotlib_is_one_clear_error(charts: dict[str, Chart], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_matplotlib(name: str, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(NoFigures, match="pip install matplotlib"):
        inline_svg(charts["headline"])


def test_more_arms_than_colours_stay_distinct(tmp_path: Path) -> None:
    for delta in range(10):
        studies.write_run(tmp_path, studies.config(delta, 0), [studies.train(1)])
    assert len(set(arm_colours(load_study(tmp_path)).values())) == 10
