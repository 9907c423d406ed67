from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rti_exp.runs import Run, load_runs
from rti_exp.runs.command import main, when
from rti_exp.runs.differences import ABSENT, differing
from tests.support import studies


@pytest.fixture
def root(tmp_path: Path) -> Path:
    studies.write_delta_study(tmp_path / "delta_study")
    return tmp_path


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def key_of(root: Path, arm: str, seed: int) -> str:
    runs = load_runs(root / "delta_study")
    return next(r.directory.name for r in runs if r.status and r.status["overrides"] == [arm, f"seed={seed}"])


def call(root: Path, *arguments: str) -> int:
    return main([*arguments, "--runs-root", str(root)])


def cells(text: str, key: str) -> list[str]:
    line = next(line for line in text.splitlines() if key in line)
    return line.split()


def test_list_shows_state_progress_and_score(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = studies.write_run(root / "other", studies.config(5, 7), [studies.train(1)], state="running")
    assert call(root, "list") == 0
    shown = capsys.readouterr().out
    row = cells(shown, key_of(root, "gate.delta=5", 1))
    assert row[1:5] == ["gate.delta=5", "1", "done", "2/2"]
    assert row[-1] == "0.875"
    assert cells(shown, key_of(root, "gate.delta=inf", 1))[1:5] == ["gate.delta=inf", "1", "failed", "1/2"]
    assert cells(shown, dead.name)[1:5] == ["-", "7", "dead", "1/2"]
    assert call(root, "list", "delta_study") == 0
    assert dead.name not in capsys.readouterr().out


def test_a_run_that_is_held_is_running_and_not_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open(root / "live" / "0123456789ab", key="0123456789ab", study="live", config={"seed": 3}, seed=3)
    try:
        assert call(root, "list", "live") == 0
        assert cells(capsys.readouterr().out, "0123456789ab")[2:4] == ["3", "running"]
        assert call(root, "rm", "0123", "--yes") == 1
        assert "is working in this directory" in capsys.readouterr().err
        assert run.directory.is_dir()
    finally:
        run.close()
    assert call(root, "rm", "0123", "--yes") == 0
    assert not run.directory.exists()


def test_show_has_status_error_evaluation_and_config(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(root, "show", key_of(root, "gate.delta=5", 1)) == 0
    shown = capsys.readouterr().out
    assert cells(shown, "pass@1") == ["pass@1", "0.875"]
    assert cells(shown, "gate.delta ") == ["gate.delta", "5"]
    assert "last evaluation: iteration 2, 4 tasks" in shown
    assert cells(shown, "compute.trained_tokens") == ["compute.trained_tokens", "1000"]
    assert call(root, "show", key_of(root, "gate.delta=inf", 1)) == 0
    shown = capsys.readouterr().out
    assert "RuntimeError: </script>" in shown
    assert "[red]bold[/red]" in shown
    assert "\x1b" not in shown


def test_diff_names_the_keys(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = key_of(root, "gate.delta=0", 0), key_of(root, "gate.delta=inf", 1)
    assert call(root, "diff", first, f"delta_study/{second}") == 0
    shown = capsys.readouterr().out
    assert "2 keys differ" in shown
    assert cells(shown, "seed ") == ["seed", "0", "1"]
    assert cells(shown, "gate.delta") == ["gate.delta", "0", "inf"]
    assert call(root, "diff", first, first) == 0
    assert capsys.readouterr().out == "the configs are equal\n"


def test_one_key_and_equal_run_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for study, seed in (("a", 1), ("b", 2)):
        Run.open(tmp_path / study / "ab12", key="ab12", study=study, config={"seed": seed}, seed=seed).close()
    assert call(tmp_path, "diff", "a/ab12", "b/ab12") == 0
    shown = capsys.readouterr().out
    assert "1 key differs" in shown
    assert cells(shown, "ab12") == ["key", "a/ab12", "b/ab12"]


def test_a_narrow_terminal_folds_the_arm_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arm = ["gate.delta=5", "verifier=policy_and_rule", "corrector=teacher", "algorithm.scope=suffix"]
    Run.open(tmp_path / "s" / "0123456789ab", key="0123456789ab", study="s", config={}, overrides=arm, seed=0).close()
    assert call(tmp_path, "list") == 0
    shown = capsys.readouterr().out
    row = cells(shown, "0123456789ab")
    assert row[:5] == ["0123456789ab", "gate.delta=5", "0", "dead", "0/?"]
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d -", " ".join(row[5:]))
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert all(text in shown.split() for text in arm)


@pytest.mark.parametrize(
    ("written", "told"), [("2026-11-29T17:51:02+00:00", "11-29 17:51"), (None, "-"), ("\x1b[31m", "-")]
)
def test_times_are_short(written: str | None, told: str) -> None:
    assert when(written) == told


def test_differing_values() -> None:
    first = {"a": 5, "b": {"c": 1, "d": float("nan")}, "e": True}
    second = {"a": 5.0, "b": {"c": 2, "d": float("nan"), "x": []}, "e": 1}
    assert differing(first, second) == [("b.c", 1, 2), ("e", True, 1), ("b.x", ABSENT, [])]


def test_rm_asks(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    directory = root / "delta_study" / key_of(root, "gate.delta=0", 0)
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    assert call(root, "rm", directory.name) == 1
    assert directory.is_dir()
    assert capsys.readouterr().err == "nothing removed\n"
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert call(root, "rm", str(directory)) == 0
    assert not directory.exists()
    assert len(load_runs(root / "delta_study")) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "x"], "no study 'x' in {root}; there are: delta_study\n"),
        (["show", "zz"], "no run 'zz' in {root}; there are: delta_study/"),
        (["show", "delta_study/zz"], "no run 'delta_study/zz' in {root}; there are: delta_study/"),
        (["diff", "", "zz"], "no run '' in {root}; there are: delta_study/"),
        (["rm", "x/zz", "--yes"], "no study 'x' in {root}; there are: delta_study\n"),
    ],
)
def test_a_wrong_name_says_what_there_is(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert call(root, *arguments) == 2
    assert capsys.readouterr().err.startswith("error: " + message.format(root=root))


def test_the_beginning_of_two_keys_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("ab12", "ab34"):
        Run.open(tmp_path / "s" / key, key=key, study="s", config={}).close()
    assert call(tmp_path, "show", "ab") == 2
    assert capsys.readouterr().err == "error: 'ab' is not one run, it may be: s/ab12, s/ab34\n"
    assert call(tmp_path, "list", "--runs-root", str(tmp_path / "absent")) == 0  # the last --runs-root counts
    assert main(["list", "--runs-root", str(tmp_path / "absent")]) == 2
    assert "there are no runs in" in capsys.readouterr().err


def test_the_module_is_a_command_without_torch(root: Path) -> None:
    code = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('rti_exp.runs', run_name='__main__')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'pandas', 'hydra'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, "list", "--runs-root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "delta_study (6)" in done.stdout
