"""Each way in which a job can end badly, for real: it fails alone, says why, and the others are done."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import load_runs, read_status
from rti_exp.sweep import job
from rti_exp.training.checkpoints import latest_valid_checkpoint
from tests.support.jobs import (
    FAULTY,
    SMALL,
    WITHOUT_TURNS,
    assert_same_run,
    call,
    in_a_fork,
    run_here,
)

Composed = Callable[..., DictConfig]


@pytest.mark.slow
def test_every_ending_is_told_and_costs_that_job_only(policy_folder: Path, tmp_path: Path) -> None:
    endings = {
        "none": None,
        "raise": "EnvironmentDownError: iteration 1: 4 of 4 rollouts are infrastructure failures",
        "sys.exit": "SystemExit: 3",
        "exit": "Exited: the process ended with exit code 7",
        "kill": "Killed: the process was ended by SIGKILL (kill -9, or the machine ran out of memory)",
        "a full disk": "OSError: [Errno 27] File too large",
        "no more memory": "",
    }
    faults = ",".join(f"'{name}'" for name in endings)
    changed = [text if text != "+env.fault=none" else f"+env.fault={faults}" for text in FAULTY]
    arguments = [*WITHOUT_TURNS, *changed, f"policy.path={policy_folder}", "max_iterations=2", "eval.tasks=0"]
    done = call("-m", *arguments, "study=endings", "hydra.launcher.n_jobs=2", cwd=tmp_path, timeout=900)
    assert done.returncode == 1, done.stdout + done.stderr
    runs = {run.config["env"]["fault"]: run for run in load_runs(tmp_path / "runs" / "endings")}
    assert runs.keys() == endings.keys()
    for fault, told in endings.items():
        status = runs[fault].status
        assert status is not None, fault
        assert status["ended"] is not None, fault
        assert status["state"] == ("done" if told is None else "failed"), fault
        if told is None:
            continue
        assert f"{status['error']['type']}: {status['error']['message']}".startswith(told), status["error"]
        assert status["error"]["traceback"].strip(), fault
    assert "emory" in json.dumps(runs["no more memory"].status["error"])  # pyright: ignore[reportOptionalSubscript]


def test_a_run_that_diverges_fails_with_the_weights_of_before(
    composed: Composed, policy_folder: Path, tmp_path: Path
) -> None:
    """Half of the world's episodes succeed, so that there is something to learn, at a rate without sense."""
    lucky = [text if text != "+env.fault=none" else "+env.fault=luck" for text in FAULTY]
    small = [*WITHOUT_TURNS, *lucky, "group_size=8"]
    small += [f"policy.path={policy_folder}", f"runs_root={tmp_path}", "algorithm.learning_rate=1e30"]
    code, directory = run_here(composed(*small))
    status = read_status(directory)
    assert status is not None
    assert (code, status["state"]) == (1, "failed")
    assert re.search(r"\b(nan|inf|finite)\b", status["error"]["message"]), status["error"]["message"]
    saved = latest_valid_checkpoint(directory / "checkpoints", directory.name)
    assert saved is None or all(torch.isfinite(value).all() for value in saved["model"].values())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """small_disk(kibibytes) mounts, or resizes, a file system of that size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def sized(kibibytes: int) -> Path:
        nonlocal mounted
        options = f"size={kibibytes}k" + (",remount" if mounted else "")
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
        mounted = True
        return folder

    yield sized
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("room", [6, 60, 400, 700])
def test_a_disk_that_is_really_full(
    composed: Composed, policy_folder: Path, tmp_path: Path, small_disk: Callable[[int], Path], room: int
) -> None:
    """Of `room` KiB; with more room the same command goes on to what the run would have been."""
    disk = small_disk(room)
    small = (*SMALL, f"policy.path={policy_folder}")
    config = composed(*small, f"runs_root={disk}")
    directory = check(config).directory("single")

    def run() -> int:
        try:
            return job.run_job(config)
        except Exception as error:  # before there is a run: told as a bad place to write to
            return 2 if type(error).__name__ == "RunUnwritable" else 98

    code = in_a_fork(run)
    assert code in (1, 2)
    status = read_status(directory)
    if code == 1:
        assert status is not None
        assert status["state"] in ("failed", "running")  # the last word needs room too
        if status["state"] == "failed":
            assert "No space left" in status["error"]["message"]
    small_disk(100_000)
    assert in_a_fork(run) == 0
    _, whole = run_here(composed(*small, f"runs_root={tmp_path / 'whole'}"))
    assert_same_run(directory, whole)


@pytest.mark.slow
def test_a_sweep_on_a_full_disk_ends_and_says_so(
    policy_folder: Path, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(300)
    arguments = [*SMALL, f"policy.path={policy_folder}", "gate.delta=0,inf", f"runs_root={disk}", "study=full"]
    done = call("-m", *arguments, "hydra.launcher.n_jobs=2", cwd=tmp_path, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No space left on device" in done.stdout + done.stderr
    small_disk(100_000)
    again = call("-m", *arguments, "hydra.launcher.n_jobs=2", cwd=tmp_path, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_device_that_is_full_is_told(tmp_path: Path) -> None:
    """/dev/full takes no byte: what an append gets to see."""
    from rti_exp.runs.json_lines import LineFile

    file = LineFile(tmp_path / "rows.jsonl")
    file.append([{"iteration": 1}])
    full = os.open("/dev/full", os.O_RDWR)
    kept, file._descriptor = file._descriptor, full
    with pytest.raises(OSError, match="No space left"):
        file.append([{"iteration": 2}])
    file._descriptor = kept
    os.close(full)
    file.append([{"iteration": 3}])
    file.close()
    assert (tmp_path / "rows.jsonl").read_text() == '{"iteration": 1}\n{"iteration": 3}\n'


@pytest.mark.slow
def test_an_environment_that_hangs_costs_rollouts_not_the_run(
    composed: Composed, policy_folder: Path, tmp_path: Path
) -> None:
    """One family of two hangs in each step: its rollouts are left out and counted, by both denominators."""
    faulty = [text for text in FAULTY if not text.startswith("+env.")]
    small = [*WITHOUT_TURNS, *faulty, "env.families=[nav_hard,pay_hard]", "+env.fault=hang", "+env.at=step"]
    small += ["+env.of=[nav_hard]", "env.timeout=3", "env.train_tasks=1", "env.heldout_tasks=1", "max_iterations=2"]
    small += [f"policy.path={policy_folder}", f"runs_root={tmp_path}"]
    code, directory = run_here(composed(*small))
    assert code == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "train":
            assert (row["trajectories/valid"], row["trajectories/infrastructure_failure"]) == (2, 2)
        if row["kind"] == "eval":
            assert row["infrastructure_failures"] == 2
            assert sorted(task["samples"] for task in row["tasks"]) == [0, 2]
    first: Sequence[Any] = [json.loads(line) for line in (directory / "rollouts.jsonl").read_text().splitlines()][:2]
    errors = [one["error"] for group in first for one in group["trajectories"] if one["status"] != "truncated"]
    assert [error for error in errors if error] == ["the environment's step took longer than 3 s"] * 2
