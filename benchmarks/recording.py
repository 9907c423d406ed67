"""The cost of records, checkpoints and W&B in a run of the embedded world, for benchmarks/growth.py.

`time/logging` is what an iteration waits for: rows, status, checkpoints, W&B's log call. W&B's threads and its service
take time too where there is one core. So the same run is measured with recording and without, in turns, on one core:
seconds of wall clock, which include all of it, and processor seconds, which include all but W&B's service. Without
recording nothing is written; Lightning gets the metrics in both.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback

SHARE = ("recording", "time/logging, s an iteration", "time/iteration, s", "share")
BESIDE = ("the same run, on one core", "s an iteration", "processor s", "ms more", "", "processor ms more", "")
ITERATIONS = 12
Clocks = tuple[float, float]
"""Seconds of wall clock, and of the processor."""
ARMS = {"without recording": None, "logger=none": "none", "logger=wandb": "wandb"}


def shares(others: Sequence[str]) -> list[list[str]]:
    """The share of `time/logging` in a run of its own process.

    Without its first two iterations: in the second's stands W&B's first log call, which defines each name, once a run.
    """
    lines = []
    for logger in ("wandb", "none"):
        with tempfile.TemporaryDirectory() as folder:
            keys = [f"logger={logger}", f"runs_root={folder}", "study=x", *_keys(others)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true"}
            done = subprocess.run(
                [sys.executable, "-m", "rti_exp.train", *keys],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(done.stderr[-2000:])
            path = next(Path(folder).glob("x/*/metrics.jsonl"))
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][2:]
        logging, whole = (sum(row[f"time/{name}"] for row in rows) for name in ("logging", "iteration"))
        lines.append(
            [f"logger={logger}", f"{logging / len(rows):.4f}", f"{whole / len(rows):.3f}", f"{logging / whole:.1%}"]
        )
    return lines


def _keys(others: Sequence[str]) -> list[str]:
    return [f"max_iterations={ITERATIONS}", "eval.tasks=0", "probe=none", *others]


def side_by_side(others: Sequence[str], repeats: int) -> list[list[str]]:
    """The mean over the iterations, each at its fastest of the repeats: the same iteration does the same in all."""
    os.environ["WANDB_SILENT"] = "true"
    found: dict[str, list[list[Clocks]]] = {name: [] for name in ARMS}
    with _one_core():
        _iterations(None, others)  # not counted: what is first in a process is slow
        for number in range(repeats):
            for name in list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]:
                found[name].append(_iterations(ARMS[name], others))
    means = {name: tuple(fastest(runs, which) for which in (0, 1)) for name, runs in found.items()}
    without, *_ = means.values()
    lines = []
    for name, seconds in means.items():
        more = [f"{1000 * (own - other):.1f}" for own, other in zip(seconds, without, strict=True)]
        share = [f"{own / other - 1:.1%}" for own, other in zip(seconds, without, strict=True)]
        cells = [cell for pair in zip(more, share, strict=True) for cell in pair]
        lines.append([name, *(f"{value:.4f}" for value in seconds), *(cells if seconds is not without else [""] * 4)])
    return lines


def fastest(runs: Sequence[Sequence[Clocks]], which: int) -> float:
    """The mean over iterations of the least that any of the runs took for it, by one of the two clocks."""
    least = [min(one[which] for one in same) for same in zip(*runs, strict=True)]
    return sum(least) / len(least)


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """For this process, and those that it starts, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class _Iterations(Callback):
    """What passes from the end of one iteration, its records included, to that of the next."""

    def __init__(self) -> None:
        self.ends: list[Clocks] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> list[Clocks]:
        return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(self.ends)]


def _iterations(logger: str | None, others: Sequence[str]) -> list[Clocks]:
    """The clocks of each iteration from the second on; with what is written beside it of the one before."""
    from rti_exp.config.check import check
    from rti_exp.config.compose import composed
    from rti_exp.experiment.build import build_experiment, build_logger
    from rti_exp.experiment.trainer import prepare_process
    from rti_exp.runs import Run
    from rti_exp.tracking.loggers import unfailing

    config = check(composed([f"logger={logger or 'none'}", *_keys(others)]))
    prepare_process(config.run.seed, config.trainer.threads)
    with tempfile.TemporaryDirectory() as name:
        folder, run, run_logger = Path(name) / config.key, None, None
        if logger is not None:
            run = Run.open(folder, key=config.key, study="x", config=config.plain)
            run_logger = build_logger(config, run)
            run.listeners += [] if run_logger is None else [unfailing(run_logger.log)]
        made, clock = build_experiment(config, run, directory=folder), _Iterations()
        made.trainer.callbacks.append(clock)  # pyright: ignore[reportAttributeAccessIssue]
        made.fit()
        if run is not None:
            if run_logger is not None:
                run_logger.finish("done", run)
            run.close()
    return clock.seconds
