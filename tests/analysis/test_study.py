from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from rti_exp.analysis.run_files import number, read_record
from rti_exp.analysis.study import Study, StudyError, find_study, load_study, records, select
from rti_exp.analysis.study_tables import excluded_table
from tests.support import studies


def only_run(path: Path) -> dict[str, Any]:
    (run,) = records(load_study(path).runs)
    return run


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A finished run, the only one in `tmp_path`."""
    return studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1])


def test_a_study_is_read_as_written(study: Study) -> None:
    assert study.name == "delta"
    assert study.title == "Study delta: 6 runs, 5 in the means"
    assert study.arms == ("gate.delta=0", "gate.delta=5", "gate.delta=inf")
    assert sorted(zip(study.runs["arm"], study.runs["seed"], study.runs["state"], strict=True)) == [
        ("gate.delta=0", 0, "done"),
        ("gate.delta=0", 1, "done"),
        ("gate.delta=5", 0, "done"),
        ("gate.delta=5", 1, "done"),
        ("gate.delta=inf", 0, "done"),
        ("gate.delta=inf", 1, "failed"),
    ]
    assert len(study.usable_runs) == 5
    assert (study.missing, study.problems) == ((), ())
    (done,) = records(select(study.runs, arm="gate.delta=5", seed=1))
    assert (done["generated_tokens"], done["scored_tokens"], done["seconds"]) == (2200, 40, 3.0)
    last = select(study.evaluations, run_key=done["run_key"], iteration=2)
    successes = dict(zip(last["task_id"], last["successes"], strict=True))
    assert successes == {"nav_hard/0": 8, "nav_hard/1": 8, "ret/0": 6, "ret/1": 6}
    assert select(study.metrics, run_key=done["run_key"])["funnel/leaked"].tolist() == [3, 3]
    assert math.isnan(study.metrics["correction/accepted_perplexity_mean"].iloc[0])
    (failed,) = records(select(study.runs, state="failed"))
    assert (failed["error_type"], failed["error_message"]) == ("RuntimeError", studies.HOSTILE)


def test_the_interventions_can_be_skipped(study: Study, delta_study: Path) -> None:
    assert len(study.interventions) == 9
    assert load_study(delta_study, interventions=False).interventions.empty


@pytest.mark.parametrize(
    ("value", "result"), [("inf", math.inf), ("-inf", -math.inf), (3, 3.0), (True, 1.0), (None, math.nan)]
)
def test_numbers_are_read_as_runs_write_them(value: object, result: float) -> None:
    assert number(value) == pytest.approx(result, nan_ok=True)


def test_other_text_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="not a number: 'many'"):
        number("many")


def test_records_are_indexed_and_read_on_demand(tmp_path: Path) -> None:
    written = [
        studies.intervention(1, reason="\u00e9\n"),
        studies.intervention(2, "leaked", perplexity="inf", weights=None, verdict=None),
        {"iteration": "x", "weights": [1, None, "inf", {}]},
    ]
    path = studies.write_run(tmp_path, studies.config(5, 0), [], interventions=written)
    rows = records(load_study(tmp_path).interventions)
    assert [(row["outcome"], row["source"]) for row in rows] == [
        ("accepted", "self"),
        ("leaked", "self"),
        ("None", "unknown"),
    ]
    assert [row["rho_T"].tolist() for row in rows] == [[1.25, 1.0], [], [1.0]]
    assert rows[1]["perplexity"] == math.inf
    assert math.isnan(rows[2]["iteration"])
    assert [read_record(row) for row in rows[1:]] == written[1:]
    assert read_record(rows[0])["reason"] == "\u00e9\n"
    (path / "interventions.jsonl").write_text("")
    gone = read_record(rows[0])
    assert (gone["outcome"], gone["error"]) == ("accepted", "the record could not be read again (JSONDecodeError)")


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_done_run_without_a_file_is_damaged(run_directory: Path, name: str) -> None:
    (run_directory / name).unlink()
    run = only_run(run_directory.parent)
    assert (run["state"], run["usable"]) == ("damaged", False)
    assert f"{name} is missing" in run["why_not"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"state": "flying"}'])
def test_an_unreadable_status_is_unknown(run_directory: Path, text: str) -> None:
    (run_directory / "status.json").write_text(text)
    run = only_run(run_directory.parent)
    assert (run["state"], run["usable"]) == ("unknown", False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines[:3], lines[3][:40]], "metrics.jsonl, line 4 is torn"),
        (lambda lines: [lines[0], *lines[2:]], "metrics.jsonl lacks 1 of 2 iterations; the first is 1"),
    ],
    ids=["torn line", "gap"],
)
def test_a_fault_in_the_metrics_excludes_a_done_run(run_directory: Path, change: Any, reason: str) -> None:
    path = run_directory / "metrics.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    run = only_run(run_directory.parent)
    assert (run["state"], run["usable"], run["why_not"]) == ("damaged", False, reason)


@pytest.mark.parametrize(
    "row",
    [
        {"kind": "eval", "iteration": 2},
        {"kind": "eval", "iteration": 2, "split": "heldout", "tasks": [{"task_id": "a"}]},
        studies.evaluation(2, {"a/0": 9}),
        {"kind": "train", "iteration": 2, "reward/mean": "high"},
        {"iteration": 1},
    ],
)
def test_a_malformed_row_excludes_a_done_run(run_directory: Path, row: dict) -> None:
    with (run_directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    run = only_run(run_directory.parent)
    assert run["state"] == "damaged"
    assert "malformed line" in run["why_not"]


def test_a_running_run_with_a_torn_line_is_listed(tmp_path: Path) -> None:
    path = studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    study = load_study(tmp_path)
    assert study.runs["state"].tolist() == ["running"]
    assert [problem.fault for problem in study.problems] == ["metrics.jsonl, line 2 is torn"]
    assert study.metrics["iteration"].tolist() == [1]


def test_torn_and_capped_records_are_only_remarks(run_directory: Path) -> None:
    path = run_directory / "interventions.jsonl"
    path.write_text(path.read_text() + '{"capped": true, "iteration": 2, "limit_bytes": 9}\n{"it')
    study = load_study(run_directory.parent)
    assert study.runs["state"].tolist() == ["done"]
    assert len(study.interventions) == 3
    assert [problem.fault for problem in study.problems] == [
        "interventions.jsonl reached its size cap in iteration 2",
        "interventions.jsonl, line 5 is torn",
    ]


def test_the_latest_of_duplicate_runs_is_used(run_directory: Path) -> None:
    copy = run_directory.parent / "another"
    shutil.copytree(run_directory, copy)
    studies.edit_status(copy, ended="2999-01-01T00:00:00+00:00")
    runs = {run["run_key"]: run for run in records(load_study(copy.parent).runs)}
    assert {key: run["usable"] for key, run in runs.items()} == {"another": True, run_directory.name: False}
    assert runs[run_directory.name]["state"] == "duplicate"
    assert runs[run_directory.name]["why_not"] == "same arm and seed as another, which ended later"


def test_seeds_of_other_arms_are_missing(tmp_path: Path) -> None:
    for delta, seed in [(0, 0), (0, 1), (5, 0)]:
        studies.write_arm_run(tmp_path, delta, seed, [1, 1, 1, 1])
    assert load_study(tmp_path).missing == (("gate.delta=5", 1),)


def test_a_job_that_died_before_its_config_is_listed(tmp_path: Path) -> None:
    for name in ("abc", "def", "figures"):
        (tmp_path / name).mkdir()
    (tmp_path / "abc" / "job.log").write_text("boom")
    error = {"type": "Killed", "message": "by SIGKILL", "traceback": ""}
    status = {"state": "failed", "seed": 1, "overrides": ["gate.delta=5", "seed=1"], "error": error}
    (tmp_path / "def" / "status.json").write_text(json.dumps(status))
    study = load_study(tmp_path)
    assert study.runs[["run_key", "arm", "state"]].to_numpy().tolist() == [
        ["abc", "unknown", "unknown"],
        ["def", "unknown", "failed"],
    ]
    row = excluded_table(study).rows[1]
    assert row == ("unknown", "1", "failed", "def", "Killed: by SIGKILL; gate.delta=5 seed=1")


def test_a_single_run_is_not_a_study(run_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"is a single run; its study is {tmp_path}"):
        load_study(run_directory)
    with pytest.raises(StudyError, match="no such study directory"):
        load_study(tmp_path / "absent")


def test_a_study_is_found_by_name_or_path(delta_study: Path, tmp_path: Path) -> None:
    root = delta_study.parent
    assert find_study("delta", root) == find_study(str(delta_study), tmp_path) == delta_study
    with pytest.raises(StudyError, match=r"Did you mean 'delta'\? Studies: delta$"):
        find_study("delt", root)
    with pytest.raises(StudyError, match="there are no runs in"):
        find_study("x", tmp_path / "absent")
