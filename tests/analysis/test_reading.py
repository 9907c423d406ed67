from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from rti_exp.analysis.interventions import number, read_record
from rti_exp.analysis.reading import StudyError, load_study, select
from rti_exp.analysis.sheets import listed_sheet
from tests.support import studies


def only_run(path: Path):
    return load_study(path).runs.iloc[0]


def test_a_study_is_read_as_written(tmp_path: Path):
    study = load_study(studies.write_delta_study(tmp_path / "delta"))
    assert study.name == "delta"
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
    done = select(study.runs, arm="gate.delta=5", seed=1).iloc[0]
    assert (done["generated_tokens"], done["scored_tokens"], done["seconds"]) == (2200, 40, 3.0)
    last = select(study.evaluations, run_key=done["run_key"], iteration=2)
    assert dict(zip(last["task_id"], last["successes"], strict=True)) == {
        "nav_hard/0": 8,
        "nav_hard/1": 8,
        "ret/0": 6,
        "ret/1": 6,
    }
    assert select(study.metrics, run_key=done["run_key"])["funnel/leaked"].tolist() == [3, 3]
    assert math.isnan(study.metrics["correction/accepted_perplexity_mean"].iloc[0])
    failed = select(study.runs, state="failed").iloc[0]
    assert (failed["error_type"], failed["error_message"]) == ("RuntimeError", studies.HOSTILE)


def test_the_interventions_can_be_skipped(tmp_path: Path):
    path = studies.write_delta_study(tmp_path / "delta")
    assert len(load_study(path).interventions) == 9
    assert load_study(path, interventions=False).interventions.empty


@pytest.mark.parametrize(("text", "value"), [("inf", math.inf), ("-inf", -math.inf), (3, 3.0), (True, 1.0)])
def test_numbers_are_read_as_runs_write_them(text: object, value: float):
    assert number(text) == value


def test_null_is_nan_and_other_text_no_number():
    assert math.isnan(number(None))
    with pytest.raises(ValueError, match="not a number: 'many'"):
        number("many")


def test_records_are_indexed_and_read_on_demand(tmp_path: Path):
    records = [
        studies.intervention(1, reason="\u00e9\n"),
        studies.intervention(2, "leaked", perplexity="inf", weights=None),
        {"iteration": "x", "weights": [1, None, "inf", {}]},
    ]
    studies.write_run(tmp_path, studies.config(5, 0), [], interventions=records)
    rows = load_study(tmp_path).interventions.to_dict("records")
    assert [(row["outcome"], row["source"]) for row in rows] == [
        ("accepted", "self"),
        ("leaked", "self"),
        ("None", "unknown"),
    ]
    assert [row["rho_T"].tolist() for row in rows] == [[1.25, 1.0], [], [1.0]]
    assert rows[1]["perplexity"] == math.inf
    assert math.isnan(rows[2]["iteration"])
    assert read_record({str(key): value for key, value in rows[0].items()})["reason"] == "\u00e9\n"
    assert read_record({str(key): value for key, value in rows[2].items()}) == records[2]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_done_run_that_lacks_a_file_is_damaged(tmp_path: Path, name: str):
    (studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / name).unlink()
    run = only_run(tmp_path)
    assert (run["state"], run["usable"]) == ("damaged", False)
    assert f"{name} is missing" in run["why_not"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"state": "flying"}'])
def test_a_status_that_cannot_be_read_is_unknown(tmp_path: Path, text: str):
    (studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / "status.json").write_text(text)
    run = only_run(tmp_path)
    assert (run["state"], run["usable"]) == ("unknown", False)


def test_a_torn_line_keeps_a_done_run_out(tmp_path: Path):
    path = studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:40]]))
    run = only_run(tmp_path)
    assert (run["state"], run["why_not"]) == ("damaged", "metrics.jsonl, line 4 is torn")


def test_a_gap_keeps_a_done_run_out(tmp_path: Path):
    path = studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert only_run(tmp_path)["why_not"] == "metrics.jsonl lacks 1 of 2 iterations, the first is 1"


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
def test_a_malformed_row_keeps_a_done_run_out(tmp_path: Path, row: dict):
    with (studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    run = only_run(tmp_path)
    assert run["state"] == "damaged"
    assert "malformed line" in run["why_not"]


def test_a_running_run_with_a_torn_line_is_listed(tmp_path: Path):
    path = studies.write_run(tmp_path, studies.config(5, 0), [studies.train(1)], state="running")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tr')
    study = load_study(tmp_path)
    assert study.runs["state"].tolist() == ["running"]
    assert [problem.what for problem in study.problems] == ["metrics.jsonl, line 2 is torn"]
    assert study.metrics["iteration"].tolist() == [1]


def test_torn_and_capped_records_are_remarks_only(tmp_path: Path):
    path = studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1]) / "interventions.jsonl"
    path.write_text(path.read_text() + '{"capped": true, "iteration": 2, "limit_bytes": 9}\n{"it')
    study = load_study(tmp_path)
    assert study.runs["state"].tolist() == ["done"]
    assert len(study.interventions) == 3
    assert [problem.what for problem in study.problems] == [
        "interventions.jsonl reached its size cap in iteration 2",
        "interventions.jsonl, line 5 is torn",
    ]


def test_of_duplicate_runs_the_last_is_used_and_the_other_shown(tmp_path: Path):
    first = studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1])
    copy = tmp_path / "another"
    shutil.copytree(first, copy)
    studies.edit_status(copy, ended="2999-01-01T00:00:00+00:00")
    runs = load_study(tmp_path).runs.set_index("run_key")
    assert runs["usable"].to_dict() == {"another": True, first.name: False}
    assert runs.loc[first.name, "state"] == "duplicate"
    assert runs.loc[first.name, "why_not"] == "same arm and seed as another, which ended later"


def test_missing_runs_are_those_that_other_arms_have(tmp_path: Path):
    for delta, seed in [(0, 0), (0, 1), (5, 0)]:
        studies.write_arm_run(tmp_path, delta, seed, [1, 1, 1, 1])
    assert load_study(tmp_path).missing == (("gate.delta=5", 1),)


def test_a_job_that_died_before_its_config_is_listed(tmp_path: Path):
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "job.log").write_text("boom")
    (tmp_path / "figures").mkdir()
    runs = load_study(tmp_path).runs
    assert runs[["run_key", "arm", "state"]].to_numpy().tolist() == [["abc", "unknown", "unknown"]]


def test_a_single_run_is_no_study(tmp_path: Path):
    run = studies.write_arm_run(tmp_path, 5, 0, [1, 1, 1, 1])
    with pytest.raises(StudyError, match=f"is a single run; its study is {tmp_path}"):
        load_study(run)
    with pytest.raises(StudyError, match="no such study directory"):
        load_study(tmp_path / "absent")


def test_a_job_without_config_is_listed_by_what_was_typed(tmp_path: Path):
    directory = tmp_path / "abc"
    directory.mkdir()
    error = {"type": "Killed", "message": "by SIGKILL", "traceback": ""}
    status = {"state": "failed", "seed": 1, "overrides": ["gate.delta=5", "seed=1"], "error": error}
    (directory / "status.json").write_text(json.dumps(status))
    (row,) = listed_sheet(load_study(tmp_path)).rows[:1]
    assert row == ("unknown", "1", "failed", "abc", "Killed: by SIGKILL; gate.delta=5 seed=1")
