"""One job and sweeps: what they leave on disk, how they end, and that a resumed run is the unbroken one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import REPORT_FILES, Run, read_status
from rti_exp.sweep import job
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.learner import RTIModule
from tests.support.jobs import (
    assert_same_run,
    break_at,
    call,
    fingerprint,
    rows,
    run_here,
)

Composed = Callable[..., DictConfig]


def test_a_run_leaves_what_the_contract_says(composed: Composed, small: Sequence[str]) -> None:
    code, directory = run_here(composed(*small))
    assert code == 0
    status = read_status(directory)
    assert status is not None
    assert (status["state"], status["iterations_done"], status["study"]) == ("done", 4, "single")
    assert directory.name == status["run_key"]
    assert status["compute"]["generated_tokens"] > 0
    found = rows(directory)
    assert [row["iteration"] for row in found if row["kind"] == "train"] == [1, 2, 3, 4]
    assert [row["iteration"] for row in found if row["kind"] == "eval"] == [0, 2, 4]
    assert [row["iteration"] for row in rows(directory, "rollouts.jsonl")] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len(list((directory / "checkpoints").iterdir())) == 2
    assert sorted(path.name for path in directory.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.yaml",
        "interventions.jsonl",
        "metrics.jsonl",
        "rollouts.jsonl",
        "status.json",
    ]


def test_a_done_run_is_left_untouched(
    composed: Composed, small: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, directory = run_here(composed(*small, "max_iterations=1"))
    before = fingerprint(directory)
    code, again = run_here(composed(*small, "max_iterations=1", "trainer.threads=2"))
    assert (code, again) == (0, directory)
    assert "already done" in capsys.readouterr().out
    assert fingerprint(directory) == before
    code, _ = run_here(composed(*small, "max_iterations=1", "fresh=true"))
    assert code == 0
    assert fingerprint(directory)["metrics.jsonl"] != before["metrics.jsonl"]


def test_a_failed_run_goes_on_as_the_unbroken_one(
    composed: Composed, small: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, unbroken = run_here(composed(*small, f"runs_root={tmp_path / 'unbroken'}"))
    with monkeypatch.context() as patched:
        break_at(patched, 3, RuntimeError("a bad day"))
        code, directory = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (code, status["state"], status["iterations_done"]) == (1, "failed", 2)
    assert (status["error"]["type"], status["error"]["message"]) == ("RuntimeError", "a bad day")
    assert "in step" in status["error"]["traceback"]
    code, _ = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (code, status["state"], status["error"], status["iterations_done"]) == (0, "done", None, 4)
    assert_same_run(directory, unbroken)


def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    composed: Composed, small: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, unbroken = run_here(composed(*small, f"runs_root={tmp_path / 'unbroken'}"))
    with monkeypatch.context() as patched:
        break_at(patched, 4, RuntimeError("a bad day"))
        _, directory = run_here(composed(*small))
    newest = max((directory / "checkpoints").glob("iteration-*.pt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"iteration-000003\.pt cannot be read"):
        code, _ = run_here(composed(*small))
    assert code == 0
    assert_same_run(directory, unbroken)


def test_an_interrupt_is_no_failure(
    composed: Composed, small: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(self: IterationCheckpoint, trainer: Any, module: RTIModule, *rest: Any) -> None:
        if module.iteration == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    _, unbroken = run_here(composed(*small, f"runs_root={tmp_path / 'unbroken'}"))
    with monkeypatch.context() as patched:
        patched.setattr(IterationCheckpoint, "on_train_batch_start", signalled, raising=False)
        code, directory = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (code, status["state"], status["error"]) == (130, "interrupted", None)
    code, _ = run_here(composed(*small))
    assert code == 0
    assert_same_run(directory, unbroken)


def test_two_jobs_in_one_directory(
    composed: Composed, small: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    config = check(composed(*small))
    directory = config.directory("single")
    holder = Run.open(directory, key=config.key, study="single", config=config.plain)
    before = fingerprint(directory)
    assert run_here(composed(*small))[0] == 1
    assert f"another process (pid {os.getpid()}) is working in this directory" in capsys.readouterr().err
    assert fingerprint(directory) == before
    holder.close()


def test_a_torn_status_is_a_run_to_go_on_with(
    composed: Composed, small: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        break_at(patched, 3, RuntimeError("a bad day"))
        _, directory = run_here(composed(*small))
    (directory / "status.json").write_text('{"state": "fai')
    code, _ = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (code, status["state"], status["iterations_done"]) == (0, "done", 4)
    assert [row["iteration"] for row in rows(directory) if row["kind"] == "train"] == [1, 2, 3, 4]


def test_a_full_disk_fails_the_run_and_keeps_its_rows(
    composed: Composed, small: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        code, directory = run_here(composed(*small))
    assert code == 1
    kept = rows(directory)
    assert kept
    assert read_status(directory) is not None
    code, _ = run_here(composed(*small))
    assert code == 0
    assert rows(directory)[: len(kept)] == kept


@pytest.mark.parametrize(("error", "code", "state"), [(None, 0, "done"), (KeyError("reward"), 1, "failed")])
def test_a_logger_that_breaks_at_the_end_changes_nothing(
    composed: Composed,
    small: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    code: int,
    state: str,
) -> None:
    class Experiment:
        heldout = range(100)

        def fit(self) -> None:
            if error is not None:
                raise error

    class Logger:
        def log(self, row: Any) -> None: ...

        def finish(self, state: str, run: Run) -> None:
            raise RuntimeError("the service is gone")

    monkeypatch.setattr(job, "build_experiment", lambda *_, **__: Experiment())
    monkeypatch.setattr(job, "build_logger", lambda *_: Logger())
    found, directory = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (found, status["state"]) == (code, state)
    assert (status["error"] or {}).get("type") == (None if error is None else "KeyError")


def test_seeds_differ_and_zero_is_one(composed: Composed, small: Sequence[str]) -> None:
    results = [
        rows(run_here(composed(*small, "max_iterations=1", f"seed={seed}"))[1], "rollouts.jsonl") for seed in (0, 1)
    ]
    assert results[0] != results[1]


def test_wandb_is_offline_and_has_the_run(
    composed: Composed, small: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("WANDB_API_KEY", secret)
    code, directory = run_here(composed(*small, "logger=wandb", "max_iterations=1", "gate.delta=inf"))
    assert code == 0
    status = read_status(directory)
    assert status is not None
    assert status["wandb_id"] == directory.name
    [offline] = (directory / "wandb").glob(f"offline-run-*-{directory.name}")
    kept = offline / "files" / directory.name  # what `wandb sync` sends, and wandb_fetch brings back
    assert {path.name for path in kept.iterdir()} <= set(REPORT_FILES)
    for name in ("status.json", "config.yaml", "metrics.jsonl"):
        assert (kept / name).read_bytes() == (directory / name).read_bytes()
    for path in directory.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


# -- the command line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gate.dleta=5",), "gate.dleta: unknown key; did you mean gate.delta?"),
        (("gate.delta=nan",), "gate.delta=nan: must be a number >= 0, or inf"),
        (("gate.delta=null",), "gate.delta=null: must be a number >= 0, or inf"),
        (("-m", "gate.delta=5,-1"), "gate.delta=-1: must be a number >= 0, or inf"),
        (("gate=null",), "Config group override must be a string"),
        (("gate=5",), "Got int; did you mean gate.delta=5?"),
        (("-m", "seed=[0,1,2]"), "must be an integer in [0, 4294967296) (job: seed=[0,1,2]"),
        (("-m", "seed=[0,1,2]"), "; to sweep: -m seed=0,1,2"),
        (("corrector=oracle",), "Available options in 'corrector'"),
        (("policy.path=nowhere",), "policy.path='nowhere': there is no nowhere/config.json"),
        (("logger.mode=on",), "logger.mode='on': must be offline, online or disabled"),
        (("-m", "logger.mode=on,offline"), "logger.mode='on': must be offline, online or disabled"),
        (("-m", "hydra.launcher.n_jobs=0"), "hydra.launcher.n_jobs=0: must be an integer >= 1"),
    ],
)
def test_bad_config_is_exit_code_2_and_leaves_nothing(
    arguments: tuple[str, ...], message: str, policy_folder: Path, tmp_path: Path
) -> None:
    path = () if arguments[0].startswith("policy") else (f"policy.path={policy_folder}",)
    done = call(*arguments, *path, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    left = {path.name for path in tmp_path.rglob("*")}
    assert left <= {"runs", ".hydra", "multirun.yaml"}


def test_an_unwritable_root_is_told_before_anything_is_loaded(policy_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    for arguments in ((), ("-m", "gate.delta=1,2")):
        done = call(*arguments, f"policy.path={policy_folder}", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "runs" in done.stderr
        assert "cannot be created or written" in done.stderr


def test_help_and_shown_configs(tmp_path: Path) -> None:
    started = time.monotonic()
    done = call("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert time.monotonic() - started < 10  # 0.5 s on an idle machine
    assert "python -m rti_exp.train -m gate.delta=0,5,20,inf" in done.stdout
    assert len(done.stdout.splitlines()) < 50
    shown = call("--cfg", "job", "--resolve", "gate.delta=7", cwd=tmp_path)
    assert "delta: 7" in shown.stdout
    assert "python" not in call("--info", "searchpath", cwd=tmp_path).stderr
    assert list(tmp_path.iterdir()) == []
