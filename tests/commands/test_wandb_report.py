"""The W&B report's blocks, built offline; nothing is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rti_exp import wandb_report
from tests.support import studies
from tests.support.wandb_environment import without_login

pytest.importorskip("wandb_workspaces.reports.v2")


@pytest.fixture(scope="module")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    studies.write_delta_study(root / "logged")
    for directory in (root / "logged").iterdir():
        studies.edit_status(directory, wandb_id=directory.name)
    studies.write_delta_study(root / "elsewhere")
    return root


def blocks(runs_root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    options = ["logged", "--runs-root", str(runs_root), "--dry-run", *arguments]
    assert wandb_report.main(options) == 0
    return json.loads(capsys.readouterr().out)


def test_the_blocks_are_those_of_the_report(runs_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = blocks(runs_root, capsys, "--entity", "me", "--project", "mine")
    assert (report["project"], report["entity"], report["title"]) == ("mine", "me", "Study logged")
    headings = [block["text"] for block in report["blocks"] if block["type"] == "H1"]
    assert headings == ["Results", "Curves", "Outcomes of the interventions", "Corrections", "Compute"]
    texts = "\n".join(block["text"] for block in report["blocks"] if block["type"] == "MarkdownBlock")
    assert "0.812 \\[0.750, 0.938\\]" in texts
    assert "Difference to gate.delta=0" in texts
    assert "Interventions and compute, mean of a finished run" in texts
    assert "RuntimeError: &#60;/script&#62;" in texts  # the failed run is listed, escaped
    panels = [panel for block in report["blocks"] for panel in block.get("panels", ())]
    assert {name for panel in panels for name in panel.get("y", ())} >= {"eval/pass@1", "funnel/accepted"}
    assert [panel["table_name"] for panel in panels if panel["type"] == "WeavePanelSummaryTable"] == ["interventions"]


def test_an_arm_is_a_run_set_of_its_finished_runs(runs_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wandb_workspaces import expr  # pyright: ignore[reportMissingImports]  (an extra)

    report = blocks(runs_root, capsys)
    grid = next(block for block in report["blocks"] if block["type"] == "PanelGrid")
    assert [arm["name"] for arm in grid["runsets"]] == ["gate.delta=0", "gate.delta=5", "gate.delta=inf"]
    failed = next(
        path.name for path in (runs_root / "logged").iterdir() if '"failed"' in (path / "status.json").read_text()
    )
    done = {path.name for path in (runs_root / "logged").iterdir()} - {failed}
    filters = [arm["filters"].partition(" in ")[2].replace("'", '"') for arm in grid["runsets"]]
    keys = [key for ids in filters for key in json.loads(ids)]
    assert sorted(keys) == sorted(done)
    assert all(arm["groupby"] == ["group"] for arm in grid["runsets"])
    assert expr.expr_to_filters(grid["runsets"][0]["filters"]) is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no study 'absent'"),
        (["elsewhere"], "no finished run of study elsewhere was logged to W&B (logger=wandb)"),
        (["logged", "--baseline", "x"], "the arms are: gate.delta=0;"),
    ],
)
def test_a_study_that_cannot_be_reported_is_one_clear_error(
    runs_root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert wandb_report.main([*arguments, "--runs-root", str(runs_root), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_without_a_login_there_is_no_prompt(runs_root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rti_exp.wandb_report", "logged", "--runs-root", str(runs_root)]
    done = subprocess.run(
        command,
        env=without_login(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "error: there is no W&B login: set the environment variable WANDB_API_KEY" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert wandb_report.main(["x"]) == 2
    assert capsys.readouterr().err == f"error: {wandb_report.INSTALL}\n"
