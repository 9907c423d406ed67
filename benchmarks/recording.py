"""What records, checkpoints and W&B cost a run of the embedded world, for benchmarks/growth.py.

`time/logging` has what an iteration waits for: rows, status, the copy of the state for a checkpoint, W&B's log call.
It has not what is done beside the next iteration (checksums and writing of the checkpoint, waiting for the disk, W&B's
own threads and its service), which takes time too where there is one core. So the same run is done with recording and
without, in turns, on one core: seconds of wall clock, which hold all of it, and processor seconds, which hold all but
W&B's service. Without it nothing is written at all; what Lightning is told is in both.
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
from pathlib import Path
from typing import Any

from measure import median
from pytorch_lightning import Callback

SHARE = ("recording", "time/logging, s an iteration", "time/iteration, s", "share")
BESIDE = ("the same run, on one core", "s an iteration", "processor s", "more than without, of s", "of processor s")
ITERATIONS = 12
ARMS = {"without recording": None, "logger=none": "none", "logger=wandb": "wandb"}


def shares(others: Sequence[str]) -> list[list[str]]:
    """The share of `time/logging` in a run of its own process, without its first iteration."""
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
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:]
        logging, whole = (sum(row[f"time/{name}"] for row in rows) for name in ("logging", "iteration"))
        lines.append(
            [f"logger={logger}", f"{logging / len(rows):.4f}", f"{whole / len(rows):.3f}", f"{logging / whole:.1%}"]
        )
    return lines


def _keys(others: Sequence[str]) -> list[str]:
    return [f"max_iterations={ITERATIONS}", "eval.tasks=0", "probe=none", *others]


def side_by_side(others: Sequence[str], repeats: int) -> list[list[str]]:
    """Medians over `repeats` rounds; what recording adds is the median over the rounds of each arm's own ratio."""
    os.environ["WANDB_SILENT"] = "true"
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ARMS}
    with _one_core():
        _seconds(None, others)  # not counted: what is first in a process is slow
        for number in range(repeats):
            order = list(ARMS) if number % 2 == 0 else list(ARMS)[::-1]
            for name in order:
                found[name].append(_seconds(ARMS[name], others))
    without = found["without recording"]
    lines = []
    for name, pairs in found.items():
        wall, processor = (median([pair[index] for pair in pairs]) for index in (0, 1))
        more = [
            f"{median([pair[index] / other[index] for pair, other in zip(pairs, without, strict=True)]) - 1:.1%}"
            for index in (0, 1)
        ]
        lines.append([name, f"{wall:.4f}", f"{processor:.4f}", *(more if pairs is not without else ["", ""])])
    return lines


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


class _FromTheSecond(Callback):
    """When the first iteration is over, its records included."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.started = (0.0, 0.0)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if pl_module.iteration == 1:
            if self.run is not None:
                self.run.disk.flush()
            self.started = (time.perf_counter(), time.process_time())


def _seconds(logger: str | None, others: Sequence[str]) -> tuple[float, float]:
    """Seconds and processor seconds an iteration, from the second on until the disk has all of it."""
    from rti_exp import build
    from rti_exp.composing import composed
    from rti_exp.config import check
    from rti_exp.loggers import unfailing
    from rti_exp.runs import Run
    from rti_exp.trainer import quiet, seed_everything

    config = check(composed([f"logger={logger or 'none'}", *_keys(others)]))
    quiet()
    seed_everything(config)
    with tempfile.TemporaryDirectory() as name:
        folder, run, told = Path(name) / config.key, None, None
        if logger is not None:
            run = Run.open(folder, key=config.key, study="x", config=config.plain)
            told = build.run_logger(config, run)
            run.listeners += [] if told is None else [unfailing(told.log)]
        made, clock = build.experiment(config, run, directory=folder), _FromTheSecond(run)
        made.trainer.callbacks.append(clock)  # pyright: ignore[reportAttributeAccessIssue]
        made.fit()
        ended = (time.perf_counter(), time.process_time())
        if run is not None:
            if told is not None:
                told.finish("done", run)
            run.close()
    wall, processor = ((end - start) / (ITERATIONS - 1) for end, start in zip(ended, clock.started, strict=True))
    return wall, processor
