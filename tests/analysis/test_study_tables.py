from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from rti_exp.analysis.arm_summary import Summary, UnknownArm, summarize
from rti_exp.analysis.results_files import write_results
from rti_exp.analysis.study import Study, load_study
from rti_exp.analysis.study_tables import (
    compute_table,
    differences_table,
    excluded_table,
    families_table,
    funnel_table,
    results_table,
    study_tables,
)
from rti_exp.analysis.table_rendering import Table, as_markdown, as_rich, show_count
from tests.support import studies


def printed(study: Study, width: int = 100) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(as_rich(study.title, study_tables(study, summarize(study))))
    return capture.get()


def results_of(path: Path) -> Table:
    study = load_study(path)
    return results_table(study, summarize(study))


def test_results_have_the_known_numbers(study: Study, summary: Summary) -> None:
    table = results_table(study, summary)
    # Two seeds whose tasks all agree: the interval spans the seeds.
    base, certain = "0.125 [0.125, 0.125]", "1.000 [1.000, 1.000]"
    assert table.rows == (
        ("gate.delta=0", "2 done (0, 1)", base, "0.375 [0.250, 0.500]", certain, "0.375"),
        ("gate.delta=5", "2 done (0, 1)", base, "0.812 [0.750, 0.938]", certain, "0.812"),
        ("gate.delta=inf", "1 done (0), 1 failed", base, *["0.500 [0.000, 1.000]"] * 2, "0.500"),
    )
    notes = "\n".join(table.notes)
    for text in ("one seed: clustered by task only", "fewer than 10 seeds", "interval of zero width"):
        assert text in notes


def test_compute_is_per_finished_run(summary: Summary) -> None:
    assert compute_table(summary).rows == (
        ("gate.delta=0", "0", "0", "2200", "40", "1000", "3"),
        ("gate.delta=5", "12", "4", "2200", "40", "1000", "3"),
        ("gate.delta=inf", "12", "4", "2200", "40", "1000", "3"),
    )


def test_lost_rollouts_are_reported_with_both_denominators(summary: Summary) -> None:
    assert len(compute_table(summary).notes) == 1
    lossy = replace(summary.arms[0], rollouts=988.0, lost_rollouts=12.0)
    assert compute_table(replace(summary, arms=(lossy,))).notes[1] == (
        "gate.delta=0: 12 of 1000 training rollouts (1.2%) are infrastructure failures; means are over the other 988."
    )


def test_differences_are_paired_against_the_arm_that_never_intervenes(summary: Summary) -> None:
    table = differences_table(summary)
    assert table.title == "Difference to gate.delta=0"
    # The seeds' differences are .5 and .375: standard deviation .0884, so .05 needs 27 seeds.
    assert table.rows == (
        ("gate.delta=5", "+0.438 [+0.312, +0.500]", "+0.000 [+0.000, +0.000]", "2 x 4", "1.00", "27"),
        ("gate.delta=inf", "+0.250 [-0.250, +0.750]", "-0.500 [-1.000, +0.000]", "1 x 4", "0.75", "-"),
    )


def test_the_baseline_can_be_named(study: Study) -> None:
    table = differences_table(summarize(study, "gate.delta=5"))
    assert [row[0] for row in table.rows] == ["gate.delta=0", "gate.delta=inf"]
    assert table.rows[0][1] == "-0.438 [-0.500, -0.312]"
    with pytest.raises(UnknownArm, match="no arm 'x'; the arms are: gate"):
        summarize(study, "x")


def test_the_funnel_sums_finished_runs_only(summary: Summary) -> None:
    table = funnel_table(summary)
    assert table.columns == ("outcome", "gate.delta=0", "gate.delta=5", "gate.delta=inf")
    assert table.rows == (
        ("attempts", "0", "24", "12"),
        ("leaked", "0", "12 (50%)", "6 (50%)"),
        ("too perplexing", "0", "4 (17%)", "2 (17%)"),
        ("accepted", "0", "8 (33%)", "4 (33%)"),
    )


def test_families_have_separate_rows(summary: Summary) -> None:
    table = families_table(summary)
    assert table.columns == ("family", "base", "gate.delta=0", "gate.delta=5", "gate.delta=inf")
    assert [row[0] for row in table.rows] == ["nav_hard", "ret"]
    assert [row[1] for row in table.rows] == ["0.125 [0.125, 0.125]"] * 2
    assert [row[3] for row in table.rows] == ["0.875 [0.750, 1.000]", "0.750 [0.750, 0.750]"]
    assert table.notes == ()


def test_a_narrow_terminal_omits_the_intervals_of_families(study: Study) -> None:
    wide, narrow = (printed(study, width).partition("by family")[2].splitlines() for width in (160, 70))
    assert next(line for line in wide if "ret " in line).count("[") == 4
    assert next(line for line in narrow if "ret " in line).split() == ["ret", "0.125", "0.375", "0.750", "0.500"]
    assert any("The intervals are in results.md" in line for line in narrow)


def test_different_bases_are_noted(tmp_path: Path) -> None:
    for delta, start in ((0, 1), (5, 2)):
        rows = [studies.train(1), studies.evaluation(0, {"a/0": start}), studies.evaluation(1, {"a/0": 4})]
        studies.write_run(tmp_path, studies.config(delta, 0), rows, overrides=[f"gate.delta={delta}"])
    table = families_table(summarize(load_study(tmp_path)))
    assert [row[:2] for row in table.rows] == [("a", "0.125 [0.125, 0.125]")]
    assert table.notes == ("The base is that of gate.delta=0; the arms have different bases.",)


def test_failed_and_missing_runs_are_listed_with_their_message(study: Study, tmp_path: Path) -> None:
    (row,) = excluded_table(study).rows
    assert row[:3] == ("gate.delta=inf", "1", "failed")
    assert row[4].startswith("RuntimeError: </script><script>")
    assert "\x1b" not in row[4]
    studies.write_arm_run(tmp_path, 0, 0, [1, 1, 1, 1])
    studies.write_arm_run(tmp_path, 5, 1, [1, 1, 1, 1])
    assert [row[:3] for row in excluded_table(load_study(tmp_path)).rows] == [
        ("gate.delta=0", "1", "missing"),
        ("gate.delta=5", "0", "missing"),
    ]


def test_arms_without_a_shared_seed_are_reported_as_unpaired(tmp_path: Path) -> None:
    studies.write_arm_run(tmp_path, 0, 0, [2, 2, 2, 2])
    studies.write_arm_run(tmp_path, 5, 1, [4, 4, 4, 4])
    table = differences_table(summarize(load_study(tmp_path)))
    assert table.rows == (("gate.delta=5", "+0.250 [+0.250, +0.250]", "+0.000 [+0.000, +0.000]", "unpaired", "-", "-"),)
    assert table.notes[-1].startswith("Unpaired: ")


def test_hostile_text_reaches_the_terminal_as_text(study: Study) -> None:
    text = printed(study, width=300)
    assert "[red]bold[/red]" in text
    assert "\x1b" not in text


def test_markdown_is_escaped_within_its_cell() -> None:
    table = Table(title="t", columns=("a", "b"), rows=(("x|y\n<b>", "*1*"),), notes=("n_1", "n2"))
    assert as_markdown("<i>", [table, replace(table, rows=(), notes=())]).splitlines() == [
        *("# &#60;i&#62;", "", "## t", "", "| a | b |", "|---|--:|", "| x\\|y &#60;b&#62; | \\*1\\* |", ""),
        *("n\\_1", "", "n2", "", "## t", "", "| a | b |", "|---|--:|", "", "No runs yet."),
    ]


def test_files_have_the_numbers(study: Study, summary: Summary, tmp_path: Path) -> None:
    markdown, table = write_results(study, summary, tmp_path)
    assert (markdown.name, table.name) == ("results.md", "results.csv")
    assert "| gate.delta=5 | 2 done (0, 1) | 0.125 \\[0.125, 0.125\\] | 0.812 \\[0.750" in markdown.read_text()
    with table.open(newline="") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    for column, value in (("pass@1", 0.8125), ("pass@1_difference", 0.4375), ("pass@1_interquartile_mean", 0.8125)):
        assert float(rows["gate.delta=5"][column]) == value
    assert rows["gate.delta=0"]["pass@1_difference"] == ""
    assert rows["gate.delta=inf"]["runs_failed"] == "1"
    assert float(rows["gate.delta=inf"]["outcome_accepted"]) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"results.md", "results.csv"}


def test_a_study_without_finished_runs_has_a_table(tmp_path: Path) -> None:
    assert "No runs yet." in printed(load_study(tmp_path), 80)
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    study = load_study(tmp_path)
    assert "1 running" in printed(study, 80)
    assert printed(study, 20)
    write_results(study, summarize(study), tmp_path)
    assert "1 running" in (tmp_path / "results.md").read_text()


def test_a_single_run_has_no_differences(tmp_path: Path) -> None:
    studies.write_arm_run(tmp_path, 5, 0, [8, 4, 4, 0])
    study = load_study(tmp_path)
    assert results_of(tmp_path).rows[0][:2] == ("all runs", "1 done (0)")
    assert differences_table(summarize(study)).notes == ("No other arm has a finished run.",)
    assert "Difference to" not in printed(study)


def test_too_few_samples_for_pass_at_8_are_noted(tmp_path: Path) -> None:
    evaluations = [studies.evaluation(place, {"a/0": place + 1}, samples=4) for place in (0, 1)]
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), *evaluations])
    table = results_of(tmp_path)
    assert table.rows[0][3:] == ("0.500 [0.500, 0.500]", "-", "0.500")
    assert "2 of 2 task evaluations have fewer than 8 valid samples and are excluded from pass@8." in table.notes


def test_a_task_without_valid_samples_is_excluded_and_noted(tmp_path: Path) -> None:
    last = studies.evaluation(1, {"a/0": 8, "a/1": 0})
    last["tasks"][1]["samples"] = 0
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), last])
    table = results_of(tmp_path)
    assert table.rows[0][3].startswith("1.000")
    assert any("1 have none and are excluded from pass@1" in note for note in table.notes)


def test_the_last_evaluation_counts_and_the_base_is_separate(tmp_path: Path) -> None:
    evaluations = [studies.evaluation(place, {"a/0": count}) for place, count in ((0, 1), (1, 4), (2, 6))]
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), studies.train(2), *evaluations])
    assert results_of(tmp_path).rows[0][2:4] == ("0.125 [0.125, 0.125]", "0.750 [0.750, 0.750]")


def test_different_last_iterations_are_noted(tmp_path: Path) -> None:
    studies.write_arm_run(tmp_path, 0, 0, [2, 2, 2, 2])
    studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1), studies.evaluation(1, {"a/0": 2})])
    assert "The last evaluations are at different iterations: gate.delta=0: 2; gate.delta=5: 1." in (
        results_of(tmp_path).notes
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9999, "9999"), (12345, "12.3k"), (4_560_000, "4.56M"), (2.5e9, "2.5G"), (1.25, "1.2"), (math.nan, "-")],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert show_count(value) == text
