from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rti_exp import report
from tests.support import studies


@pytest.fixture(scope="module")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    studies.write_delta_study(root / "delta_study")
    (root / "notes").mkdir()
    return root


def test_all_files_are_written_alongside_the_runs(runs_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["delta_study", "--runs-root", str(runs_root)]) == 0
    study = runs_root / "delta_study"
    assert {path.name for path in study.iterdir() if path.is_file()} == {"results.md", "results.csv", "report.html"}
    assert {path.suffix for path in (study / "figures").iterdir()} == {".png", ".svg"}
    shown = capsys.readouterr().out
    assert "gate.delta=5" in shown
    assert "and 20 files in figures/" in shown
    # The written files are not runs, so a second report finds the same study.
    assert report.main([str(study), "--no-figures"]) == 0
    assert "Study delta_study: 6 runs, 5 in the means" in capsys.readouterr().out


def test_the_output_and_the_baseline_can_be_chosen(runs_root: Path, tmp_path: Path) -> None:
    options = ["--runs-root", str(runs_root), "--output", str(tmp_path / "new" / "place"), "--no-figures"]
    assert report.main(["delta_study", *options, "--baseline", "gate.delta=5", "--interventions", "0"]) == 0
    assert {path.name for path in (tmp_path / "new" / "place").iterdir()} == {
        "results.md",
        "results.csv",
        "report.html",
    }
    assert "Difference to gate.delta=5" in (tmp_path / "new" / "place" / "results.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["delta_stud"], "Did you mean 'delta_study'? Studies: delta_study"),
        (["notes"], "Studies: delta_study"),
        (["delta_study", "--baseline", "x"], "the arms are: gate.delta=0; gate.delta=5; gate.delta=inf"),
    ],
)
def test_a_wrong_name_lists_the_alternatives(
    runs_root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert report.main([*arguments, "--runs-root", str(runs_root)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_an_absent_runs_root_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["x", "--runs-root", str(tmp_path / "absent")]) == 2
    assert "there are no runs in" in capsys.readouterr().err


def test_a_run_is_not_a_study(runs_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(path for path in (runs_root / "delta_study").iterdir() if (path / "status.json").exists())
    assert report.main([str(run)]) == 2
    assert "is a single run; its study is" in capsys.readouterr().err


def test_an_unwritable_output_is_exit_code_1(
    runs_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    options = ["--runs-root", str(runs_root), "--output", str(tmp_path / "file" / "below")]
    assert report.main(["delta_study", *options]) == 1
    assert capsys.readouterr().err.startswith("error: cannot write: ")


def test_a_negative_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        report.main(["x", "--interventions", "-1"])
    assert stopped.value.code == 2


def test_a_study_without_finished_runs_is_reported(tmp_path: Path) -> None:
    studies.write_run(tmp_path / "s", studies.config(5, 0), [], state="failed", error=ValueError("[/]"))
    assert report.main(["s", "--runs-root", str(tmp_path)]) == 0
    assert "ValueError: \\[/\\]" in (tmp_path / "s" / "results.md").read_text()


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    study = studies.write_delta_study(tmp_path / "study")
    command = [sys.executable, "-m", "rti_exp.report", str(study), "--no-figures"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert (study / "report.html").is_file()


def test_help_is_quick_and_nothing_loads_torch() -> None:
    code = "import sys; from rti_exp import report; report.parser().format_help(); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "'argparse'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("torch", "pandas", "matplotlib", "scipy", "rich"))
    code = "import sys; import rti_exp.analysis.results_files, rti_exp.analysis.report_page; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not any(f"'{name}'" in loaded for name in ("torch", "matplotlib", "rich"))
