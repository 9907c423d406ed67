"""Hostile and damaged run directories alongside good ones: reports, lists and sweeps do their work all the same."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rti_exp import article, compute, report
from rti_exp.analysis.study import load_study
from rti_exp.runs import load_runs
from rti_exp.runs.command import main as runs_command
from rti_exp.sweep.display import duration, measured_seconds_per_iteration, show_results
from tests.support import studies
from tests.support.hostile_files import DAMAGES, ESCAPE

SECONDS = 60


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """A test that hangs fails."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"took longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def study_with(root: Path, *damages: str) -> Path:
    """A study of good runs, and one run for each damage."""
    study = studies.write_delta_study(root / "study")
    good = studies.write_arm_run(root / "other", 5, 7, [1, 1, 1, 1])
    for place, damage in enumerate(damages):
        copy = study / f"{place:012x}"
        shutil.copytree(good, copy)
        DAMAGES[damage](copy)
    return study


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_hostile_run_costs_neither_the_study_nor_the_commands(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = load_study(studies.write_delta_study(tmp_path / "good" / "study"))
    path = study_with(tmp_path / "bad", damage)
    study = load_study(path)
    assert len(study.runs) == len(good.runs) + 1
    assert set(good.usable_runs["run_key"]) <= set(study.usable_runs["run_key"])
    assert report.main([str(path), "--no-figures"]) == 0
    assert compute.main(["study", "--runs-root", str(path.parent)]) == 0
    assert runs_command(["list", "--runs-root", str(path.parent)]) == 0
    for run in load_runs(path):
        assert runs_command(["show", str(run.directory)]) in (0, 2)
    duration(measured_seconds_per_iteration(path) or 0.0)
    show_results(path)
    assert ESCAPE[:4] not in "".join(capsys.readouterr())


def test_all_of_them_at_once_are_reported_and_charted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study_with(tmp_path, *DAMAGES)
    assert report.main([str(path)]) == 0
    with contextlib.chdir(tmp_path):
        assert article.main([str(path)]) == 0
    assert ESCAPE[:4] not in "".join(capsys.readouterr())


def test_escape_codes_in_names_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = studies.write_arm_run(tmp_path / "study", 5, 7, [1, 1, 1, 1])
    study = tmp_path / f"study{ESCAPE.replace('/', '')}\udcff"
    run = study / f"0123456789ab{ESCAPE}"
    shutil.copytree(good, run)
    root = ["--runs-root", str(tmp_path)]
    assert report.main([str(study), "--no-figures"]) == 0
    assert report.main(["nothing", *root]) == 2
    assert report.main([str(run)]) == 2
    assert compute.main([str(study)]) == 0
    assert compute.main(["nothing", *root]) == 2
    assert runs_command(["list", *root]) == 0
    assert runs_command(["show", str(run), *root]) == 0
    assert runs_command(["diff", str(run), str(good)]) == 0
    assert runs_command(["show", "nothing", *root]) == 2
    with contextlib.chdir(tmp_path):
        assert article.main([str(study)]) == 0
    show_results(study)
    assert runs_command(["rm", str(run), "--yes", *root]) == 0
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "study\\x1b" in shown
