"""`python -m rti_exp.train` as a process: kills, failing jobs and interrupts of sweeps."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import is_held, read_status
from tests.support.jobs import (
    assert_same_run,
    call,
    command,
    environment,
    fingerprint,
    iterations_done,
    run_here,
    wait_for,
)

Composed = Callable[..., DictConfig]


@pytest.mark.slow
def test_three_iterations_kill_and_three_more_are_six(composed: Composed, small: Sequence[str], tmp_path: Path) -> None:
    six = (*small, "max_iterations=6", "env.max_turns=3")
    _, unbroken = run_here(composed(*six, f"runs_root={tmp_path / 'unbroken'}"))
    directory = check(composed(*six)).directory("single")
    first = subprocess.Popen(command(*six), cwd=tmp_path, env=environment())
    wait_for(lambda: iterations_done(directory) >= 3)
    first.kill()
    first.wait()
    status = read_status(directory)
    assert status is not None
    assert status["state"] == "running"
    assert 3 <= status["iterations_done"] < 6
    assert call(*six, cwd=tmp_path).returncode == 0
    assert_same_run(directory, unbroken)


@pytest.mark.slow
def test_a_sweep_with_a_job_that_fails(small: Sequence[str], policy_folder: Path, tmp_path: Path) -> None:
    """The second policy's weights are broken: that job fails alone, the other is done and then skipped."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in policy_folder.iterdir():
        broken.joinpath(path.name).write_bytes(
            path.read_bytes()[:2000] if path.suffix == ".safetensors" else path.read_bytes()
        )
    arguments = [text for text in small if not text.startswith(("policy", "max_iterations"))]
    arguments += ["max_iterations=1", f"policy.path={policy_folder},{broken}", "hydra.launcher.n_jobs=2"]
    done = call("-m", *arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    runs = {read_status(path)["state"]: path for path in (tmp_path / "runs" / "policy.path").iterdir() if path.is_dir()}  # pyright: ignore  # fmt: skip
    assert set(runs) == {"done", "failed"}
    failed = read_status(runs["failed"])
    assert failed is not None
    assert "Traceback" in failed["error"]["traceback"]
    assert failed["error"]["message"] in done.stdout.replace("\n", " ") or failed["error"]["type"] in done.stdout
    before = fingerprint(runs["done"])
    again = call("-m", *arguments, cwd=tmp_path)
    assert again.returncode == 1
    assert fingerprint(runs["done"]) == before
    assert (tmp_path / "runs" / "policy.path" / "results.md").is_file()


@pytest.mark.slow
def test_a_killed_sweep_takes_its_children_along(small: Sequence[str], tmp_path: Path) -> None:
    arguments = [*small, "max_iterations=60", "eval.every=0", "gate.delta=0,5", "hydra.launcher.n_jobs=2"]
    study = tmp_path / "runs" / "gate.delta"
    sweep = subprocess.Popen(command("-m", *arguments), cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL)
    wait_for(lambda: study.is_dir() and sum(iterations_done(path) >= 1 for path in study.iterdir()) == 2)
    sweep.kill()
    sweep.wait()

    def states() -> set[str]:
        return {(read_status(path) or {})["state"] for path in study.iterdir() if path.is_dir()}

    wait_for(lambda: "running" not in states())
    folders = [path for path in study.iterdir() if path.is_dir()]
    assert states() == {"interrupted"}
    wait_for(lambda: not any(is_held(path) for path in folders))
    assert [0 < iterations_done(path) < 60 for path in folders] == [True, True]


@pytest.mark.slow
def test_a_sweep_ends_its_children_on_an_interrupt_and_goes_on(small: Sequence[str], tmp_path: Path) -> None:
    arguments = [*small, "max_iterations=60", "eval.every=0", "gate.delta=0,5", "hydra.launcher.n_jobs=2"]
    study = tmp_path / "runs" / "gate.delta"
    sweep = subprocess.Popen(
        command("-m", *arguments),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background job ignores it
    )

    def both_began() -> bool:
        return study.is_dir() and sum(iterations_done(path) >= 1 for path in study.iterdir()) == 2

    with contextlib.ExitStack() as stack:
        stack.callback(sweep.kill)
        wait_for(both_began)
        pids = [(read_status(path) or {})["pid"] for path in study.iterdir() if path.is_dir()]
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(60) == 130
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    states = [(read_status(path) or {})["state"] for path in study.iterdir() if path.is_dir()]
    assert states == ["interrupted", "interrupted"]
