"""What each means of speed is worth: an iteration with it and without it, the rest being equal.

    python benchmarks/means.py [--repeats 2] [--tasks 16] [--only NAME ...] [--compile] [--side-by-side]

RTI on the embedded world with the embedded policy, one thread, arms in turns, each from the untrained weights; the
first iteration of a run is not counted. `--compile` adds torch.compile of the training pass (a minute),
`--side-by-side` two jobs at once against one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.deterministic
from measure import experiment, machine, median, table
from pytorch_lightning import Callback

PHASES = ("rollout", "roles", "score", "update")


@contextmanager
def nothing(_made: Any) -> Iterator[None]:
    yield


@contextmanager
def filled_memory(_made: Any) -> Iterator[None]:
    torch.utils.deterministic.fill_uninitialized_memory = True  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def plain_engine(made: Any) -> Iterator[None]:
    made.module.engine._compiled = None
    yield


@contextmanager
def torchs_matmuls(_made: Any) -> Iterator[None]:
    with patch("rti_exp.compiled_qwen3.matmul._ONEDNN", False):
        yield


@contextmanager
def nothing_kept(_made: Any) -> Iterator[None]:
    with patch("rti_exp.engines.prefix_index.PrefixIndex.longest", lambda _index, _prompt: None):
        yield


@contextmanager
def padded_update(made: Any) -> Iterator[None]:
    made.module.policy._forward._fast = None
    yield


@contextmanager
def all_logits(made: Any) -> Iterator[None]:
    made.module.policy._forward._fast = made.module.policy._forward._parts = None
    yield


@contextmanager
def scored_twice(_made: Any) -> Iterator[None]:
    from rti_exp.engines.failed_requests import score_each

    def halves(engine: Any, requests: Sequence[Any]) -> list[Any]:
        middle = len(requests) // 2
        return [*score_each(engine, requests[:middle]), *score_each(engine, requests[middle:])]

    with patch("rti_exp.intervention.gate.score_each", halves):
        yield


@contextmanager
def compiled(made: Any) -> Iterator[None]:
    forward = made.module.policy._forward
    forward._fast = None
    decoder, head = forward._parts
    forward._parts = (torch.compile(decoder, dynamic=True), head)
    yield


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of running, as overrides and as a change to what was built."""

    name: str
    overrides: tuple[str, ...] = ()
    change: Callable[[Any], Any] = nothing


BASE = "as it is"
ARMS = (
    Arm(BASE),
    Arm("a batch for each group", ("engine.max_batch=8",)),
    Arm("no keys and values kept over calls", change=nothing_kept),
    Arm("rollouts by transformers", change=plain_engine),
    Arm("matmuls as torch takes them", change=torchs_matmuls),
    Arm("new memory filled (deterministic mode's default)", change=filled_memory),
    Arm("validator: one step a call", ("validator.steps_per_call=1",)),
    Arm("gate and rho scored in two passes", change=scored_twice),
    Arm("update by transformers", change=padded_update),
    Arm("update in one batch", ("algorithm.micro_batch_tokens=1000000",)),
    Arm("micro-batches of 1,024 tokens, not 4,096", ("algorithm.micro_batch_tokens=1024",)),
    Arm("update by transformers, with logits of all tokens", change=all_logits),
    Arm("bf16 autocast", ("trainer.precision=bf16-mixed",)),
)
COMPILE = Arm("torch.compile of the training pass", change=compiled)
COMPILING = 3
"""The first iterations, in which each new shape is compiled; they are not counted, of any arm."""


class Clock(Callback):
    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.started = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.started = time.process_time()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        row = {f"time/{phase}": pl_module.last_metrics[f"time/{phase}"] for phase in PHASES}
        self.rows.append({**row, "seconds": time.process_time() - self.started})


def measured(arm: Arm, shared: Sequence[str], iterations: int, first: int) -> list[dict[str, float]]:
    """The rows after the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        keys = [*shared, f"max_iterations={first + iterations}", *arm.overrides]
        made, clock = experiment(keys, Path(folder)), Clock()
        made.trainer.callbacks.append(clock)  # pyright: ignore[reportAttributeAccessIssue]
        with arm.change(made):
            made.fit()
    if arm is COMPILE:
        spent = sum(row["seconds"] for row in clock.rows[:first])
        print(f"torch.compile: the first {first} iterations took {spent:.0f} s")
    return clock.rows[first:]


def side_by_side(shared: Sequence[str]) -> tuple[float, float]:
    """Seconds of one job, and of two that are started together, on a core each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    seconds = []
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "rti_exp.train",
                "logger=none",
                "eval.tasks=0",
                f"runs_root={folder}",
                *shared,
            ]
            started = time.perf_counter()
            jobs = [
                subprocess.Popen([*command, f"seed={seed}"], env=environment, stdout=subprocess.DEVNULL)
                for seed in range(count)
            ]
            codes = [job.wait() for job in jobs]
            if any(codes):
                sys.exit("a job failed")
            seconds.append(time.perf_counter() - started)
    return seconds[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each arm, each with a seed of its own")
    parser.add_argument("--iterations", type=int, default=2, help="counted iterations of each run")
    parser.add_argument("--tasks", type=int, default=16, help="groups of 8 in an iteration")
    parser.add_argument("--only", nargs="+", help="arms, by the beginning of their names")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--side-by-side", action="store_true")
    options, overrides = parser.parse_known_args()
    torch.set_num_threads(1)
    shared = [f"tasks_per_iteration={options.tasks}", *overrides]
    arms = [arm for arm in ARMS if arm.name == BASE or not options.only or arm.name.startswith(tuple(options.only))]
    arms += [COMPILE] if options.compile else []
    rows: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms}
    first = COMPILING if options.compile else 1
    print(f"{machine()}; one thread, {options.tasks} x 8")
    for seed in range(options.repeats):
        for arm in arms if seed % 2 else reversed(arms):
            rows[arm.name] += measured(arm, [*shared, f"seed={seed}"], options.iterations, first)
    names = ("seconds", *(f"time/{phase}" for phase in PHASES))
    base = {name: median([row[name] for row in rows[BASE]]) for name in names}
    lines = []
    for name, found in rows.items():
        middle = {column: median([row[column] for row in found]) for column in names}
        cells = [f"{middle[column]:.2f}" for column in names]
        lines.append([name, *cells, f"{middle['seconds'] / base['seconds']:.2f}"])
    print("\n" + table(("way", "processor s an iteration", *PHASES, "against as it is"), lines))
    if options.side_by_side:
        one, two = side_by_side([*shared, "max_iterations=6"])
        print(f"\none job {one:.1f} s, two at once {two:.1f} s: {2 * one / two:.2f} times the work in the same time")


if __name__ == "__main__":
    main()
