"""What is taken in, against the baseline: numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

from rti_exp.analysis.learning import learning_sheet
from rti_exp.analysis.reading import load_study
from rti_exp.analysis.sheets import sheets
from rti_exp.analysis.summary import summarize
from tests.support import studies


def probe(iteration: int, perplexity: float) -> dict:
    return {"kind": "probe", "iteration": iteration, "perplexity": perplexity}


def write(study_dir: Path, delta: float, seed: int, end: float, breadth: float, median: float | None) -> None:
    tasks = ["ret/0", "ret/1"]
    trained = [
        studies.train(
            iteration,
            **{
                "pass@G/before": breadth if iteration == 3 else 0.0,
                # 9 in the first third, the iteration 1; 99 in neither
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
    study = load_study(tmp_path)
    sheet = learning_sheet(study, summarize(study))
    # Probe: ratios 2/2 = 1 and 2/8 = 1/4, whose geometric mean is 1/2; the last third of 3 iterations is the third.
    assert sheet.rows == (
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
    study = load_study(tmp_path)
    rows = learning_sheet(study, summarize(study)).rows
    assert [row[5:7] for row in rows] == [("-", "-"), ("2.00", "-")]


def test_runs_without_a_probe_have_no_such_table(tmp_path: Path) -> None:
    study_dir = studies.write_delta_study(tmp_path / "delta")
    study = load_study(study_dir)
    assert learning_sheet(study, summarize(study)).rows == ()
    assert not any("taken in" in sheet.title for sheet in sheets(study, summarize(study)))


def test_a_seed_without_interventions_at_the_end_is_left_out(tmp_path: Path) -> None:
    for seed, median in ((0, 2.0), (1, None)):
        write(tmp_path, 5, seed, 1.0, 0.5, median)
        write(tmp_path, 3, seed, 1.0, 0.5, 4.0)
    study = load_study(tmp_path)
    rows = {row[0]: row for row in learning_sheet(study, summarize(study, "gate.delta=3")).rows}
    assert rows["gate.delta=5"][5:7] == ("2.00", "0.50 [0.50, 0.50]")
