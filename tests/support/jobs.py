"""Small runs of the embedded world in this process, in forks and in child processes, and comparisons of them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import read_status
from rti_exp.sweep import job
from rti_exp.training.checkpoints import latest_valid_checkpoint
from rti_exp.training.learner import RTIModule

SMALL = (
    "logger=none",
    "max_iterations=4",
    "tasks_per_iteration=2",
    "group_size=2",
    "eval.tasks=2",
    "eval.samples=2",
    "eval.every=2",
    "recorder.every=1",
    "checkpoint_every=1",
    "rollout.max_context=1024",
    "rollout.max_tokens=8",
    "env.max_turns=2",
    "algorithm.beta=0.1",  # with a KL term there is something to learn although the random policy always fails
)


def rows(directory: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a file without what a clock made."""
    found = [json.loads(line) for line in (directory / name).read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not key.startswith("time/") and key != "tokens/per_second"}
        for row in found
    ]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    state = latest_valid_checkpoint(directory / "checkpoints", directory.name)
    assert state is not None
    return state["model"]


def assert_same_run(first: Path, second: Path) -> None:
    for name in ("metrics.jsonl", "interventions.jsonl", "rollouts.jsonl"):
        assert rows(first, name) == rows(second, name), name
    left, right = weights(first), weights(second)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def run_here(config: DictConfig) -> tuple[int, Path]:
    return job.run_job(config), check(config).directory("single")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rti_exp.train", *arguments]


def call(*arguments: str, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def environment() -> dict[str, str]:
    root = str(Path(job.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def iterations_done(directory: Path) -> int:
    return int((read_status(directory) or {}).get("iterations_done") or 0)


def in_a_fork(work: Callable[[], int]) -> int:
    """What `work` returns in a copy of this process; -9 if it was killed."""
    pid = os.fork()
    if pid == 0:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FAULTY = ("env._target_=tests.support.faults.FaultyTown", "probe=none", "+env.fault=none", "+env.at=start", "~env.seed")


WITHOUT_TURNS = tuple(text for text in SMALL if not text.startswith("env."))


def break_at(monkeypatch: pytest.MonkeyPatch, iteration: int, error: BaseException) -> None:
    real = RTIModule.training_step

    def step(self: RTIModule, tasks: Any) -> None:
        if self.iteration + 1 == iteration:
            raise error
        real(self, tasks)

    monkeypatch.setattr(RTIModule, "training_step", step)
