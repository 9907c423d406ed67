"""Runs in W&B become run directories again. W&B itself needs a login, so a folder replaces its API."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rti_exp import wandb_fetch
from rti_exp.analysis.study import load_study
from rti_exp.runs import REPORT_FILES
from rti_exp.tracking import wandb_runs
from tests.support import studies
from tests.support.wandb_environment import without_login


@dataclass
class StoredFile:
    name: str
    folder: Path

    def download(self, root: str = ".", replace: bool = False) -> None:
        target = Path(root) / self.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.folder / Path(self.name).name, target)


@dataclass
class StoredRun:
    """A W&B run with the files of the run directory `folder`."""

    folder: Path
    key: str
    state: str = "finished"
    extra: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"id-{self.key}"

    def files(self) -> Iterable[StoredFile]:
        names = [f"{self.key}/{name}" for name in REPORT_FILES if (self.folder / name).exists()]
        return [StoredFile(name, self.folder) for name in (*names, "config.yaml", "output.log", *self.extra)]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StoredRun]:
    """The W&B runs of a study on another machine."""
    there = studies.write_delta_study(tmp_path / "there" / "delta")
    keys: dict[str, str] = {}
    for number, folder in enumerate(sorted(path for path in there.iterdir() if path.is_dir())):
        keys[folder.name] = f"{number:012x}"
        status = folder / "status.json"
        if status.exists():
            status.write_text(status.read_text().replace(folder.name, keys[folder.name]))
    runs = [StoredRun(there / name, key) for name, key in keys.items() if (there / name / "status.json").exists()]
    monkeypatch.setattr(wandb_runs, "remote_runs", lambda project, study: runs)
    return runs


def fetch(root: Path, *more: str) -> int:
    return wandb_fetch.main(["team/project", "delta", "--runs-root", str(root), *more])


def test_the_fetched_study_reads_as_the_one_that_was_sent(
    stored: list[StoredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(tmp_path / "here") == 0
    sent, here = load_study(tmp_path / "there" / "delta"), load_study(tmp_path / "here" / "delta")
    columns = ["arm", "seed", "iteration", "task_id", "successes"]
    usable = [sorted(study.of_usable(study.evaluations)[columns].to_numpy().tolist()) for study in (sent, here)]
    assert len(usable[0]) > 0
    assert usable[0] == usable[1]
    assert capsys.readouterr().out.count("  fetched: ") == len(stored)
    assert not list((tmp_path / "here" / "delta").glob(".fetching*"))


def test_existing_run_directories_are_left_unchanged(
    stored: list[StoredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "here" / "delta" / stored[0].key
    mine.mkdir(parents=True)
    (mine / "metrics.jsonl").write_text("mine")
    assert fetch(tmp_path / "here") == 0
    assert (mine / "metrics.jsonl").read_text() == "mine"
    assert [path.name for path in mine.iterdir()] == ["metrics.jsonl"]
    assert f"{stored[0].key}  already here" in capsys.readouterr().out


def test_remote_names_are_not_used_as_paths(
    stored: list[StoredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = ("../status.json", "../../evil/status.json", "0000000000ff/../status.json", "ZZ/config.yaml")
    stored[:] = [StoredRun(stored[0].folder, stored[0].key, extra=hostile)]
    assert fetch(tmp_path / "here") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"there", "here"}
    assert [path.name for path in (tmp_path / "here" / "delta").iterdir()] == [stored[0].key]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": "not-a-key"}, "has no files of a run directory (logger.files=true)"),
        ({"extra": ("0000000000ff/status.json",)}, "has files of 2 run directories"),
        ({"key": "0000000000ff"}, "has no readable status.json of run 0000000000ff"),
    ],
)
def test_a_run_that_cannot_be_fetched_is_reported_and_the_others_are_fetched(
    stored: list[StoredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], why: str
) -> None:
    stored[0] = StoredRun(**{"folder": stored[0].folder, "key": stored[0].key, **change})  # pyright: ignore[reportArgumentType]
    assert fetch(tmp_path / "here") == 1
    streams = capsys.readouterr()
    assert why in streams.err
    assert streams.out.count("fetched: ") == len(stored) - 1
    assert len(list((tmp_path / "here" / "delta").iterdir())) == len(stored) - 1


def test_a_running_run_is_left_out(stored: list[StoredRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored[0].state = "running"
    assert fetch(tmp_path / "here") == 0
    assert f"{stored[0].id}  left out: still running" in capsys.readouterr().out
    assert not (tmp_path / "here" / "delta" / stored[0].key).exists()


@pytest.mark.parametrize(
    ("project", "study", "why"),
    [
        ("project", "delta", "'project': must be ENTITY/PROJECT"),
        ("a/b/c", "delta", "'a/b/c': must be ENTITY/PROJECT"),
        ("a/b", "../delta", "'../delta': must be the name of a study, without a slash"),
        ("a/b", "..", "'..': must be the name of a study, without a slash"),
    ],
)
def test_bad_names_are_refused(project: str, study: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert wandb_fetch.main([project, study]) == 2
    assert why in capsys.readouterr().err


def test_the_exit_code_distinguishes_a_refusal_from_a_missing_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_runs, "remote_runs", lambda project, study: [])
    assert wandb_fetch.main(["team/project", "refused"]) == 2

    def refuse(project: str, study: str) -> Any:
        raise wandb_runs.Refused("W&B refused")

    monkeypatch.setattr(wandb_runs, "remote_runs", refuse)
    assert wandb_fetch.main(["team/project", "delta"]) == 1


def test_a_notebook_takes_a_path_or_a_study_in_wandb(stored: list[StoredRun], tmp_path: Path) -> None:
    assert wandb_runs.study_directory("some/where") == Path("some/where")
    directory = wandb_runs.study_directory("wandb:team/project/delta", tmp_path / "here")
    assert directory == tmp_path / "here" / "delta"
    assert len(load_study(directory).runs) == len(stored)
    stored[0].key = "not-a-key"
    with pytest.raises(wandb_runs.FetchError, match="id-not-a-key"):
        wandb_runs.study_directory("wandb:team/project/delta", tmp_path / "other")


def test_without_a_login_there_is_no_prompt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rti_exp.wandb_fetch", "team/project", "delta"]
    done = subprocess.run(
        command, env=without_login(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no W&B login: set the environment variable WANDB_API_KEY")


def test_the_api_has_the_methods_that_are_used() -> None:
    """The fakes have the shape of W&B's classes."""
    public = pytest.importorskip("wandb.apis.public")
    attributes = {"id": "a", "name": "0000000000ff/status.json", "sizeBytes": 1, "directUrl": "https://localhost/"}
    stored = public.File(None, attributes)
    assert stored.name == "0000000000ff/status.json"
    assert {"root", "replace"} <= inspect.signature(stored.download).parameters.keys()
    assert callable(public.Run.files)
    assert {"path", "filters"} <= inspect.signature(public.Api.runs).parameters.keys()
