"""One job: which process holds its directory, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.evaluation.pass_rates import too_few_tasks
from rti_exp.runs import Run
from rti_exp.sweep import job

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
SMALL = ("logger=none", "trainer=ddp_cpu", "trainer.devices=2")


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "SLURM_PROCID": "1"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "0"}, True),
        ({"SLURM_PROCID": "1"}, False),
        ({"RANK": "", "SLURM_PROCID": ""}, True),
    ],
)
def test_only_global_rank_0_opens_the_directory(
    environment: Mapping[str, str],
    first: bool,
    composed: Callable[..., DictConfig],
    policy_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given: list[Run | None] = []

    def train(config: object, run: Run | None, directory: Path) -> int:
        given.append(run)
        return job.DONE

    bound: list[bool] = []
    monkeypatch.setattr(job, "end_with_the_parent", lambda: bound.append(True))
    monkeypatch.setattr(job, "_train", train)
    config = composed(*SMALL, f"policy.path={policy_folder}", f"runs_root={tmp_path}")
    assert job.run_job(config) == job.DONE
    [run] = given
    assert bound == ([] if first else [True])
    assert (run is not None) is first
    assert (f"python -m rti_exp.report single --runs-root {tmp_path}" in capsys.readouterr().out) is first
    assert check(config).directory("single").exists() is first


def test_slurms_tasks_of_one_process_each_are_runs_of_their_own(
    composed: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert job._is_first_rank(check(composed()))


def test_missing_held_out_tasks_are_told() -> None:
    assert too_few_tasks(97, 97) is None
    told = "warning: eval.tasks=97, but there are only 96 held-out tasks; all of them are used"
    assert too_few_tasks(97, 96) == told


def test_a_gpu_that_is_not_there_is_told_before_the_run_has_a_directory(
    composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    config = composed("trainer=gpu", f"policy.path={policy_folder}", f"runs_root={tmp_path}")
    with pytest.raises(SettingsError, match=r"^trainer\.accelerator='gpu': .*; use trainer=cpu$"):
        job.run_job(config)
    assert list(tmp_path.iterdir()) == []


def test_a_logger_that_cannot_be_is_told_before_the_run_has_a_directory(
    composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rti_exp.tracking.loggers.has_login", lambda: False)
    config = composed("logger.mode=online", f"policy.path={policy_folder}", f"runs_root={tmp_path}")
    with pytest.raises(SettingsError, match=r"^logger\.mode='online': there is no W&B login"):
        job.run_job(config)
    assert list(tmp_path.iterdir()) == []
