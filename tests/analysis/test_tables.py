from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rti_exp.analysis.reading import load_study
from rti_exp.analysis.sheets import (
    Sheet,
    compute_sheet,
    differences_sheet,
    families_sheet,
    funnel_sheet,
    listed_sheet,
    results_sheet,
    show_count,
)
from rti_exp.analysis.summary import UnknownArm, summarize
from rti_exp.analysis.tables import as_markdown, sweep_table, write_tables
from tests.support import studies


@pytest.fixture(scope="module")
def delta_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studies.write_delta_study(tmp_path_factory.mktemp("runs") / "delta")


def printed(path: Path, width: int = 100) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(sweep_table(path))
    return capture.get()


def test_results_have_the_known_numbers(delta_study: Path):
    study = load_study(delta_study)
    sheet = results_sheet(study, summarize(study))
    # Two seeds whose tasks are all alike: the interval spans the seeds.
    assert sheet.rows == (
        (
            "gate.delta=0",
            "2 done (0, 1)",
            "0.125 [0.125, 0.125]",
            "0.375 [0.250, 0.500]",
            "1.000 [1.000, 1.000]",
            "0.375",
        ),
        (
            "gate.delta=5",
            "2 done (0, 1)",
            "0.125 [0.125, 0.125]",
            "0.812 [0.750, 0.938]",
            "1.000 [1.000, 1.000]",
            "0.812",
        ),
        ("gate.delta=inf", "1 done (0), 1 failed", "0.125 [0.125, 0.125]", *["0.500 [0.000, 1.000]"] * 2, "0.500"),
    )
    assert any("one seed: clustered by task only" in note for note in sheet.notes)
    assert any("fewer than 10 seeds" in note for note in sheet.notes)
    assert any("interval without width" in note for note in sheet.notes)


def test_compute_is_per_finished_run(delta_study: Path):
    sheet = compute_sheet(summarize(load_study(delta_study)))
    assert sheet.rows == (
        ("gate.delta=0", "0", "0", "2200", "40", "1000", "3"),
        ("gate.delta=5", "12", "4", "2200", "40", "1000", "3"),
        ("gate.delta=inf", "12", "4", "2200", "40", "1000", "3"),
    )


def test_rollouts_that_were_lost_are_told_with_both_denominators(delta_study: Path):
    summary = summarize(load_study(delta_study))
    assert len(compute_sheet(summary).notes) == 1
    broken = replace(summary.arms[0], rollouts=988.0, lost_rollouts=12.0)
    assert compute_sheet(replace(summary, arms=(broken,))).notes[1] == (
        "gate.delta=0: 12 of 1000 rollouts of training (1.2%) are infrastructure failures; "
        "means are over the other 988."
    )


def test_differences_are_paired_against_the_arm_that_never_intervenes(delta_study: Path):
    sheet = differences_sheet(summarize(load_study(delta_study)))
    assert sheet.title == "Difference to gate.delta=0"
    # The seeds' differences are .5 and .375: standard deviation .0884, so .05 takes 27 seeds.
    assert sheet.rows == (
        ("gate.delta=5", "+0.438 [+0.312, +0.500]", "+0.000 [+0.000, +0.000]", "2 x 4", "1.00", "27"),
        ("gate.delta=inf", "+0.250 [-0.250, +0.750]", "-0.500 [-1.000, +0.000]", "1 x 4", "0.75", "-"),
    )


def test_the_baseline_can_be_named(delta_study: Path):
    study = load_study(delta_study)
    sheet = differences_sheet(summarize(study, "gate.delta=5"))
    assert [row[0] for row in sheet.rows] == ["gate.delta=0", "gate.delta=inf"]
    assert sheet.rows[0][1] == "-0.438 [-0.500, -0.312]"
    with pytest.raises(UnknownArm, match="no arm 'x'; the arms are: gate"):
        summarize(study, "x")


def test_the_funnel_sums_finished_runs_only(delta_study: Path):
    sheet = funnel_sheet(summarize(load_study(delta_study)))
    assert sheet.columns == ("outcome", "gate.delta=0", "gate.delta=5", "gate.delta=inf")
    assert sheet.rows == (
        ("attempts", "0", "24", "12"),
        ("leaked", "0", "12 (50%)", "6 (50%)"),
        ("too perplexing", "0", "4 (17%)", "2 (17%)"),
        ("accepted", "0", "8 (33%)", "4 (33%)"),
    )


def test_families_are_apart(delta_study: Path):
    sheet = families_sheet(summarize(load_study(delta_study)))
    assert sheet.columns == ("family", "base", "gate.delta=0", "gate.delta=5", "gate.delta=inf")
    assert [row[0] for row in sheet.rows] == ["nav_hard", "ret"]
    assert [row[1] for row in sheet.rows] == ["0.125 [0.125, 0.125]"] * 2
    assert [row[3] for row in sheet.rows] == ["0.875 [0.750, 1.000]", "0.750 [0.750, 0.750]"]
    assert sheet.notes == ()


def test_families_fit_a_narrow_terminal_without_their_intervals(delta_study: Path):
    wide, narrow = (printed(delta_study, width).partition("by family")[2].splitlines() for width in (160, 70))
    assert next(line for line in wide if "ret " in line).count("[") == 4
    assert next(line for line in narrow if "ret " in line).split() == ["ret", "0.125", "0.375", "0.750", "0.500"]
    assert any("The intervals are in results.md" in line for line in narrow)


def test_another_base_is_said(tmp_path: Path):
    for delta, start in ((0, 1), (5, 2)):
        rows = [studies.train(1), studies.evaluation(0, {"a/0": start}), studies.evaluation(1, {"a/0": 4})]
        studies.write_run(tmp_path, studies.config(delta, 0), rows, overrides=[f"gate.delta={delta}"])
    sheet = families_sheet(summarize(load_study(tmp_path)))
    assert [row[:2] for row in sheet.rows] == [("a", "0.125 [0.125, 0.125]")]
    assert sheet.notes == ("The base is that of gate.delta=0; it is not the same for all arms.",)


def test_failed_missing_and_torn_are_listed_with_their_message(delta_study: Path, tmp_path: Path):
    (row,) = listed_sheet(load_study(delta_study)).rows
    assert row[:3] == ("gate.delta=inf", "1", "failed")
    assert row[4].startswith("RuntimeError: </script><script>")
    assert "\x1b" not in row[4]
    studies.write_arm_run(tmp_path, 0, 0, [1, 1, 1, 1])
    studies.write_arm_run(tmp_path, 5, 1, [1, 1, 1, 1])
    assert [row[:3] for row in listed_sheet(load_study(tmp_path)).rows] == [
        ("gate.delta=0", "1", "missing"),
        ("gate.delta=5", "0", "missing"),
    ]


def test_arms_without_a_shared_seed_are_reported_as_unpaired(tmp_path: Path):
    studies.write_arm_run(tmp_path, 0, 0, [2, 2, 2, 2])
    studies.write_arm_run(tmp_path, 5, 1, [4, 4, 4, 4])
    sheet = differences_sheet(summarize(load_study(tmp_path)))
    assert sheet.rows == (
        ("gate.delta=5", "+0.250 [+0.250, +0.250]", *["+0.000 [+0.000, +0.000]", "unpaired"], "-", "-"),
    )
    assert sheet.notes[-1].startswith("Unpaired: ")


def test_hostile_text_reaches_the_terminal_as_text(delta_study: Path):
    text = printed(delta_study, width=300)
    assert "[red]bold[/red]" in text
    assert "\x1b" not in text


def test_markdown_cells_keep_to_their_cell():
    sheet = Sheet(title="t", columns=("a", "b"), rows=(("x|y\n<b>", "*1*"),))
    assert as_markdown("<i>", [sheet]).splitlines()[:6] == [
        "# &#60;i&#62;",
        "",
        "## t",
        "",
        "| a | b |",
        "|---|--:|",
    ]
    assert "| x\\|y &#60;b&#62; | \\*1\\* |" in as_markdown("", [sheet])


def test_files_are_written_whole_and_hold_the_numbers(delta_study: Path):
    markdown, table = write_tables(delta_study)
    assert (markdown.name, table.name) == ("results.md", "results.csv")
    assert "| gate.delta=5 | 2 done (0, 1) | 0.125 \\[0.125, 0.125\\] | 0.812 \\[0.750" in markdown.read_text()
    with table.open(newline="") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert float(rows["gate.delta=5"]["pass@1"]) == 0.8125
    assert float(rows["gate.delta=5"]["pass@1_difference"]) == 0.4375
    assert float(rows["gate.delta=5"]["pass@1_interquartile_mean"]) == 0.8125
    assert rows["gate.delta=0"]["pass@1_difference"] == ""
    assert rows["gate.delta=inf"]["runs_failed"] == "1"
    assert float(rows["gate.delta=inf"]["outcome_accepted"]) == 4
    assert not list(delta_study.glob(".*tmp"))


def test_a_study_without_finished_runs_has_a_table(tmp_path: Path):
    assert "No runs yet." in printed(tmp_path, 80)
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    assert "1 running" in printed(tmp_path, 80)
    assert printed(tmp_path, 20)
    write_tables(tmp_path)
    assert "1 running" in (tmp_path / "results.md").read_text()


def test_a_single_run_has_no_differences(tmp_path: Path):
    studies.write_arm_run(tmp_path, 5, 0, [8, 4, 4, 0])
    study = load_study(tmp_path)
    summary = summarize(study)
    assert results_sheet(study, summary).rows[0][:2] == ("all runs", "1 done (0)")
    assert differences_sheet(summary).notes == ("No second arm with a finished run.",)
    assert "Difference to" not in printed(tmp_path)


def test_too_few_samples_for_pass_at_8_are_said(tmp_path: Path):
    rows = [
        studies.train(1),
        studies.evaluation(0, {"a/0": 1}, samples=4),
        studies.evaluation(1, {"a/0": 2}, samples=4),
    ]
    studies.write_run(tmp_path, studies.config(5, 0), rows)
    study = load_study(tmp_path)
    sheet = results_sheet(study, summarize(study))
    assert sheet.rows[0][3:] == ("0.500 [0.500, 0.500]", "-", "0.500")
    told = "2 of 2 task evaluations have fewer than 8 valid samples and are left out of pass@8."
    assert told in sheet.notes


def test_a_task_without_valid_samples_is_left_out_and_said(tmp_path: Path):
    last = studies.evaluation(1, {"a/0": 8, "a/1": 0})
    last["tasks"][1]["samples"] = 0
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), last])
    study = load_study(tmp_path)
    sheet = results_sheet(study, summarize(study))
    assert sheet.rows[0][3].startswith("1.000")
    assert any("1 have none and are left out of pass@1" in note for note in sheet.notes)


def test_the_last_evaluation_counts_and_the_base_is_apart(tmp_path: Path):
    evaluations = [studies.evaluation(place, {"a/0": count}) for place, count in ((0, 1), (1, 4), (2, 6))]
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), studies.train(2), *evaluations])
    study = load_study(tmp_path)
    row = results_sheet(study, summarize(study)).rows[0]
    assert (row[2], row[3]) == ("0.125 [0.125, 0.125]", "0.750 [0.750, 0.750]")


def test_different_last_iterations_are_said(tmp_path: Path):
    studies.write_arm_run(tmp_path, 0, 0, [2, 2, 2, 2])
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), studies.evaluation(1, {"a/0": 2})])
    study = load_study(tmp_path)
    notes = results_sheet(study, summarize(study)).notes
    assert "The last evaluations are not of the same iteration: gate.delta=0: 2; gate.delta=5: 1." in notes


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (9999, "9999"), (12345, "12.3k"), (4_560_000, "4.56M"), (2.5e9, "2.5G"), (1.25, "1.2"), (math.nan, "-")],
)
def test_counts_are_short(value: float, shown: str):
    assert show_count(value) == shown
