from __future__ import annotations

import builtins
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from rti_exp.analysis import charts
from rti_exp.analysis.figures import NoFigures, inline_svg, save
from rti_exp.analysis.reading import load_study
from rti_exp.analysis.summary import summarize
from tests.support import studies


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory):
    return load_study(studies.write_delta_study(tmp_path_factory.mktemp("runs") / "delta"))


def chart(study, name: str):
    return next(chart for chart in charts.charts(study, summarize(study)) if chart.name == name)


def test_every_chart_with_data_is_there(study):
    names = [found.name for found in charts.charts(study, summarize(study))]
    assert names == [
        "headline",
        "heldout_pass_1",
        "heldout_pass_8",
        "training_reward",
        "pass_before",
        "all_failed",
        "funnel",
        "perplexity",
        "rho",
        "compute",
    ]


def test_a_study_without_finished_runs_has_no_charts(tmp_path: Path):
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    found = load_study(tmp_path)
    assert charts.charts(found, summarize(found)) == []


def test_series_are_of_usable_runs_only(study):
    assert charts.evaluation_series(study, 1) == {
        "gate.delta=0": {0: {0: 0.125, 2: 0.25}, 1: {0: 0.125, 2: 0.5}},
        "gate.delta=5": {0: {0: 0.125, 2: 0.75}, 1: {0: 0.125, 2: 0.875}},
        "gate.delta=inf": {0: {0: 0.125, 2: 0.5}},
    }
    assert charts.metric_series(study, "reward/mean")["gate.delta=inf"] == {0: {1: 0.25, 2: 0.5}}
    assert charts.metric_series(study, "no/such") == {}


def test_the_band_is_told_of_where_there_is_one(study, tmp_path: Path):
    assert chart(study, "heldout_pass_1").caption == "Held-out pass@1 over training; the band spans the seeds."
    studies.write_arm_run(tmp_path, 5, 0, [2, 2, 2, 2])
    assert chart(load_study(tmp_path), "heldout_pass_1").caption == "Held-out pass@1 over training."


def test_iterations_without_a_value_are_left_out(study):
    assert charts.metric_series(study, "correction/accepted_perplexity_mean") == {}


def test_the_gates_of_the_arms_are_drawn(study):
    assert charts.gates(study) == [5.0]
    assert "gate 5" in inline_svg(chart(study, "perplexity"))
    assert charts.perplexities(study) == {"self": [math.exp(0.75)] * 9}


def test_an_inline_chart_is_well_formed_and_loads_nothing(study):
    for found in charts.charts(study, summarize(study)):
        text = inline_svg(found)
        root = ElementTree.fromstring(text)
        ids = [node.get("id") for node in root.iter() if node.get("id")]
        assert all(name is not None and name.startswith(f"{found.name}-") for name in ids)
        assert len(ids) == len(set(ids))
        assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
        assert all(name in ids for name in re.findall(r"url\(#([^)]*)\)", text))
        assert "currentColor" in text


def test_labels_are_text_in_the_svg(tmp_path: Path):
    for prompt in ("<script>alert(1)</script>", "$x^2$ & more"):
        settings = studies.config(5, 0, prompt=prompt)
        studies.write_run(tmp_path, settings, [studies.evaluation(1, {"a/0": 4}), studies.train(1)])
    text = inline_svg(chart(load_study(tmp_path), "headline"))
    assert "<script>" not in text
    labels = [node.text for node in ElementTree.fromstring(text).iter() if node.tag.endswith("text")]
    assert "prompt=<script>alert(1)</script>" in labels
    assert "prompt=$x^2$ & more" in labels


def test_charts_are_saved_twice_and_the_svg_is_reproducible(study, tmp_path: Path):
    png, svg = save(chart(study, "headline"), tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    save(chart(study, "headline"), tmp_path)
    assert svg.read_bytes() == first


def test_a_missing_matplotlib_is_one_clear_error(study, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without_matplotlib(name: str, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(NoFigures, match="pip install matplotlib"):
        inline_svg(chart(study, "headline"))


def test_more_arms_than_colours_are_told_apart(tmp_path: Path):
    for delta in range(10):
        studies.write_run(tmp_path, studies.config(delta, 0), [studies.train(1)])
    colours = charts.arm_colours(load_study(tmp_path))
    assert len(set(colours.values())) == 10
