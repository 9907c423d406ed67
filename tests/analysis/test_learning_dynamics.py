from __future__ import annotations

from pathlib import Path

from rti_exp.analysis.arm_summary import summarize
from rti_exp.analysis.chart_rendering import inline_svg
from rti_exp.analysis.learning_dynamics import intervened_charts, learning_table, probe_charts
from rti_exp.analysis.study import load_study
from rti_exp.analysis.study_tables import study_tables
from tests.support import studies


def rows_of(path: Path, baseline: str | None = None) -> tuple[tuple[str, ...], ...]:
    study = load_study(path)
    return learning_table(study, summarize(study, baseline)).rows


def probe(iteration: int, perplexity: float) -> dict:
    return {"kind": "probe", "iteration": iteration, "perplexity": perplexity}


def write(study_dir: Path, delta: float, seed: int, end: float, breadth: float, median: float | None) -> None:
    tasks = ["ret/0", "ret/1"]
    trained = [
        studies.train(
            iteration,
            **{
                "pass@G/before": breadth if iteration == 3 else 0.0,
                # 9 in the first third (iteration 1); 99 in neither third
                "correction/perplexity_median": {1: 9.0, 2: 99.0, 3: median}[iteration],
            },
        )
        for iteration in (1, 2, 3)
    ]
    rows = [probe(0, 4.0), *trained, studies.evaluation(3, dict.fromkeys(tasks, 4)), probe(3, end)]
    overrides = [f"gate.delta={delta}", f"seed={seed}"]
    studies.write_run(study_dir, studies.config(delta, seed), rows, overrides=overrides)


def test_ratios_and_differences_are_of_the_end_of_training(tmp_path: Path) -> None:
    for seed, end in ((0, 2.0), (1, 8.0)):
        write(tmp_path, 0, seed, end, 0.25, 4.0)
    for seed in (0, 1):
        write(tmp_path, 5, seed, 2.0, 0.75, 1.0)
    # Probe: ratios 2/2 = 1 and 2/8 = 1/4, whose geometric mean is 1/2; the last third of 3 iterations is the third.
    assert rows_of(tmp_path) == (
        ("gate.delta=0", "4.00", "4.00", "-", "9.00", "4.00", "-", "-"),
        (
            "gate.delta=5",
            "4.00",
            "2.00",
            "0.50 [0.25, 1.00]",
            "9.00",
            "1.00",
            "0.25 [0.25, 0.25]",
            "+0.500 [+0.500, +0.500]",
        ),
    )


def test_without_corrections_there_is_no_ratio_of_them(tmp_path: Path) -> None:
    write(tmp_path, 0, 0, 2.0, 0.5, None)
    write(tmp_path, 5, 0, 1.0, 0.5, 2.0)
    assert [row[5:7] for row in rows_of(tmp_path)] == [("-", "-"), ("2.00", "-")]


def test_runs_without_a_probe_have_no_learning_table(delta_study: Path) -> None:
    study = load_study(delta_study)
    assert rows_of(delta_study) == ()
    assert not any("Learning from" in table.title for table in study_tables(study, summarize(study)))
    assert probe_charts(study) == []


def test_a_seed_without_interventions_at_the_end_is_excluded(tmp_path: Path) -> None:
    for seed, median in ((0, 2.0), (1, None)):
        write(tmp_path, 5, seed, 1.0, 0.5, median)
        write(tmp_path, 3, seed, 1.0, 0.5, 4.0)
    rows = {row[0]: row for row in rows_of(tmp_path, "gate.delta=3")}
    assert rows["gate.delta=5"][5:7] == ("2.00", "0.50 [0.50, 0.50]")


def test_probes_are_read_and_drawn(tmp_path: Path) -> None:
    studies.add_probes(studies.write_delta_study(tmp_path / "s"))
    study = load_study(tmp_path / "s")
    assert set(study.probes["perplexity"].tolist()) == {4.0, 2.0}
    assert [chart.caption.partition(";")[0] for chart in probe_charts(study)] == [
        "Fixed probe, all families: perplexity of right actions",
        "Fixed probe, ret: perplexity of right actions",
    ]
    assert "mathdefault" not in inline_svg(probe_charts(study)[0])


def test_the_perplexity_of_intervened_steps_is_drawn_if_there_is_any(tmp_path: Path) -> None:
    rows = [studies.evaluation(0, {"ret/0": 1}), studies.train(1) | {"correction/perplexity_median": 3.0}]
    studies.write_run(tmp_path / "s", studies.config(5, 0), rows)
    assert [chart.name for chart in intervened_charts(load_study(tmp_path / "s"))] == ["intervened_0"]
