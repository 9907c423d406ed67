"""kill -9 at any moment: of a run at its file operations, and of whole sweeps at random times. What goes on from there
equals what was never killed: rows, records, weights. Seeded; RTI_EXP_KILL_SEED draws other moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import is_held, read_status
from rti_exp.sweep import job
from tests.support.jobs import (
    SMALL,
    assert_same_run,
    command,
    environment,
    in_a_fork,
    iterations_done,
    wait_for,
)

Composed = Callable[..., DictConfig]
pytestmark = pytest.mark.slow
SEED = int(os.environ.get("RTI_EXP_KILL_SEED", "0"))
OPERATIONS = ("fsync", "replace", "pwrite", "ftruncate", "unlink", "mkdir", "open")
KILLS_OF_A_SWEEP = 20


def killed_at(number: int, half: bool) -> None:
    """Kill this process before its file operation `number`; a write is half done, if `half`."""
    done = 0

    def counting(name: str, real: Any) -> Any:
        def operation(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                if half and name == "pwrite":
                    real(args[0], args[1][: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return operation

    for name in OPERATIONS:
        setattr(os, name, counting(name, getattr(os, name)))


@pytest.mark.parametrize("chain", range(3))
def test_a_run_that_is_killed_at_its_file_operations(
    composed: Composed, policy_folder: Path, tmp_path: Path, chain: int
) -> None:
    """Eight kills in a row, each after up to ninety further operations; then to the end."""
    small = (*SMALL, f"policy.path={policy_folder}", "max_iterations=8", "recorder.every=2")
    whole, broken = (composed(*small, f"runs_root={tmp_path / name}") for name in ("whole", "broken"))
    rng = random.Random(f"{SEED}/{chain}")
    assert in_a_fork(lambda: job.run_job(whole)) == 0
    directory = check(broken).directory("single")
    for _ in range(8):
        number, half = rng.randint(1, 90), rng.random() < 0.5

        def until_killed(number: int = number, half: bool = half) -> int:
            killed_at(number, half)
            return job.run_job(broken)

        code = in_a_fork(until_killed)
        assert code in (-signal.SIGKILL, 0)
        assert not is_held(directory)
    assert in_a_fork(lambda: job.run_job(broken)) == 0
    assert (read_status(directory) or {})["state"] == "done"
    assert_same_run(directory, check(whole).directory("single"))
    assert not list(directory.rglob("*.tmp"))


@contextlib.contextmanager
def sweep(arguments: Sequence[str], cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(cwd / "sweep.log", "ab") as log:
        process = subprocess.Popen(command("-m", *arguments), cwd=cwd, env=environment(), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def job_pids(study: Path) -> list[int]:
    """Of the jobs that are running and held."""
    folders = [path for path in study.iterdir() if path.is_dir()] if study.is_dir() else []
    return [int((read_status(path) or {}).get("pid") or 0) for path in folders if is_held(path)]


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_sweep_that_is_killed_twenty_times(policy_folder: Path, tmp_path: Path) -> None:
    """The sweep, a job of it, or everything; while it starts, trains, evaluates or writes."""
    arguments = [*SMALL, f"policy.path={policy_folder}", "max_iterations=40", "eval.every=4", "gate.delta=0,inf"]
    arguments.append("hydra.launcher.n_jobs=2")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    with sweep(arguments, whole) as process:
        assert process.wait(600) == 0, (whole / "sweep.log").read_text()[-3000:]
    study = broken / "runs" / "gate.delta"
    rng = random.Random(SEED)
    for _ in range(KILLS_OF_A_SWEEP):
        with sweep(arguments, broken) as process:
            before = sum(iterations_done(path) for path in study.iterdir()) if study.is_dir() else 0
            if rng.random() < 0.75:  # after some work
                further = rng.randint(0, 3)

                def worked(before: int = before, further: int = further, process: Any = process) -> bool:
                    now = sum(iterations_done(path) for path in study.iterdir()) if study.is_dir() else 0
                    return process.poll() is not None or (bool(job_pids(study)) and now >= before + further)

                wait_for(worked)
                time.sleep(rng.uniform(0.0, 0.3))
            else:  # while it starts
                time.sleep(rng.uniform(0.0, 6.0))
            victims = rng.choice(("sweep", "job", "all"))
            if victims != "sweep":
                kill(job_pids(study)[: 1 if victims == "job" else None])
                time.sleep(rng.uniform(0.0, 0.5) if victims == "job" else 0.0)
    with sweep(arguments, broken) as process:
        assert process.wait(600) == 0, (broken / "sweep.log").read_text()[-3000:]
    folders = sorted(path for path in study.iterdir() if path.is_dir())
    assert len(folders) == 2
    for directory in folders:
        assert (read_status(directory) or {})["state"] == "done"
        assert_same_run(directory, whole / "runs" / "gate.delta" / directory.name)


def test_an_interrupted_run_ends_cleanly_wherever_it_is(policy_folder: Path, tmp_path: Path) -> None:
    """Ctrl-C while it imports, builds and trains: exit code 130, one line, no traceback, nothing held."""
    arguments = [*SMALL, f"policy.path={policy_folder}", "max_iterations=200", f"runs_root={tmp_path}", "study=s"]
    rng = random.Random(SEED)
    for moment in ("start", "start", "run", "train", "train"):
        process = subprocess.Popen(
            command(*arguments),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        before = max((iterations_done(path) for path in tmp_path.glob("s/*")), default=0)
        if moment == "start":
            time.sleep(rng.uniform(1.0, 3.0))
        elif moment == "run":
            wait_for(lambda: bool(job_pids(tmp_path / "s")))
        else:
            wait_for(lambda before=before: max(map(iterations_done, tmp_path.glob("s/*")), default=0) > before)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        assert not job_pids(tmp_path / "s")


def test_two_sweeps_in_one_directory_do_not_harm_each_other(policy_folder: Path, tmp_path: Path) -> None:
    arguments = [*SMALL, f"policy.path={policy_folder}", "max_iterations=12", "gate.delta=0,inf"]
    arguments.append("hydra.launcher.n_jobs=2")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    alone.mkdir()
    shared.mkdir()
    with sweep(arguments, alone) as process:
        assert process.wait(600) == 0
    with sweep(arguments, shared) as first, sweep(arguments, shared) as second:
        codes = [first.wait(600), second.wait(600)]
    study = shared / "runs" / "gate.delta"
    assert set(codes) <= {0, 1}, (shared / "sweep.log").read_text()[-3000:]
    if codes != [0, 0]:  # the one that found a directory held has said so, and has failed
        assert "is working in this directory" in "".join(path.read_text() for path in study.glob("*/job.log"))
    for directory in (path for path in study.iterdir() if path.is_dir()):
        assert (read_status(directory) or {})["state"] == "done"
        assert_same_run(directory, alone / "runs" / "gate.delta" / directory.name)
