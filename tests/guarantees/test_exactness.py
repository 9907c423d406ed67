"""Bit-equality on the embedded world: two runs of each arm, and each arm broken off and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.sweep import job
from tests.support.jobs import (
    assert_same_run,
    break_at,
    command,
    environment,
    in_a_fork,
    iterations_done,
    rows,
    run_here,
    wait_for,
    weights,
)

Composed = Callable[..., DictConfig]
pytestmark = pytest.mark.slow
SHORT = (
    "logger=none",
    "probe=none",
    "max_iterations=2",
    "tasks_per_iteration=4",
    "group_size=4",
    "eval.tasks=2",
    "eval.samples=2",
    "eval.every=0",
    "recorder.every=1",
)
ARMS = {
    "grpo": ["gate.delta=0"],
    "rti": [],
    "one update": ["algorithm.updates=1"],
    "three updates": ["algorithm.updates=3", "gate.delta=inf"],
    "kl": ["algorithm.beta=0.1"],
    "dynamic sampling": ["algorithm.dynamic_sampling=2"],
    "appended": ["intervention.merge=append", "algorithm.scope=suffix"],
    "shadow": ["gate.delta=1.5", "gate.shadow=true", "reweight.eps_cal=0.5"],
    "rule": ["verifier=policy_and_rule", "intervention.evidence=reference"],
    "no verifier": ["verifier=none"],
    "teacher": ["corrector=teacher", "reweight=source", "algorithm.updates=1"],
    "no corrector": ["corrector=none", "algorithm.updates=3"],
    "luffy": ["algorithm=luffy"],
    "luffy of halves": ["algorithm=luffy", "corrector=self", "algorithm.prefix_fraction=0.5"],
    "opd": ["algorithm=opd", "algorithm.updates=3"],
    "sft": ["algorithm=sft", "corrector=self"],
    "sft of a teacher's": ["algorithm=sft", "corrector=teacher", "gate.delta=inf", "verifier=none"],
}  # fmt: skip


@pytest.mark.parametrize("arm", ARMS)
def test_two_runs_and_one_that_was_broken_off_are_equal(
    composed: Composed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    first, second, broken = (
        composed(*SHORT, *ARMS[arm], f"runs_root={tmp_path / name}") for name in ("first", "second", "broken")
    )
    code, whole = run_here(first)
    assert code == 0
    assert in_a_fork(lambda: job.run_job(second)) == 0
    assert_same_run(whole, check(second).directory("single"))
    with monkeypatch.context() as patched:
        break_at(patched, 2, RuntimeError("a bad day"))
        assert job.run_job(broken) == 1
    assert iterations_done(check(broken).directory("single")) == 1
    assert job.run_job(broken) == 0
    assert_same_run(whole, check(broken).directory("single"))
    trained = [row["updates/steps"] for row in rows(whole) if row["kind"] == "train"]
    assert sum(trained) > 0, "nothing was learned, so nothing was shown"


def test_a_call_in_another_process_changes_no_number(composed: Composed, tmp_path: Path) -> None:
    here, there = (composed(*SHORT, f"runs_root={tmp_path / name}") for name in ("here", "there"))
    there.env.timeout = 60
    assert check(here).key == check(there).key
    (_, first), (_, second) = run_here(here), run_here(there)
    assert_same_run(first, second)
    assert any(row.get("funnel/attempts") for row in rows(first))


def ddp(arguments: Sequence[str], cwd: Path) -> subprocess.Popen[bytes]:
    two = [*SHORT, *arguments, "trainer=ddp_cpu", "trainer.devices=2", "max_iterations=4", f"runs_root={cwd}"]
    with open(cwd / "log", "ab") as log:
        return subprocess.Popen(command(*two), cwd=cwd, env=environment(), stdout=log, stderr=log)


def processes_of(marker: str) -> list[int]:
    """Of this user's processes, those with `marker` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_run_of_two_processes_is_killed_and_goes_on(tmp_path: Path) -> None:
    """kill -9 of rank 0: rank 1 ends by itself, and the resumed run is the unbroken one."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    assert ddp([], whole).wait(600) == 0, (whole / "log").read_text()[-3000:]
    process = ddp([], broken)
    wait_for(lambda: any(iterations_done(path) >= 2 for path in broken.glob("single/*")), 600)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    wait_for(lambda: not processes_of(f"runs_root={broken}"), 60)
    assert ddp([], broken).wait(600) == 0, (broken / "log").read_text()[-3000:]
    (first,), (second,) = (list(folder.glob("single/*")) for folder in (whole, broken))
    assert_same_run(first, second)
    assert weights(first)
