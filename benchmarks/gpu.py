"""RTI iterations of the tiny policy and of SmolLM2 on a GPU: seconds by phase, tokens per second, memory.

    python benchmarks/gpu.py                                  # 10 minutes at most; stops before what would not fit
    python benchmarks/gpu.py --small trainer=cpu              # two groups of two of the tiny policy: does it work?

Each work runs `--iterations` iterations with the embedded world, the first of which is not counted: tiny 16 x 8, 64 x 8
and 256 x 8, SmolLM2 (`policy=smollm2`, benchmarks/README.md) 4 x 8 and 16 x 8. Memory is the most that torch held on
the GPU; on a CPU, the process. Overrides of rti_exp.train go to all of them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import experiment, finish, machine, matmul_rate, median, peak_mebibytes, table
from pytorch_lightning import Callback

WORKS = (("tiny", 16, 8), ("smollm2", 4, 8), ("tiny", 64, 8), ("smollm2", 16, 8), ("tiny", 256, 8))
SMALL = (("tiny", 2, 2),)
PHASES = ("rollout", "roles", "score", "update")
COLUMNS = ("policy", "size", "s an iteration", *PHASES, "generated a second", "trained a second", "peak memory, MiB")


class Clock(Callback):
    """Each iteration's seconds and metrics; ends the run at a deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rows: list[dict[str, float]] = []
        self.started = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        finish(pl_module.device.type)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        finish(pl_module.device.type)
        now = time.perf_counter()
        row = {name: value for name, value in pl_module.last_metrics.items() if value is not None}
        self.rows.append({**row, "seconds": now - self.started})
        if now + 1.5 * (now - self.started) > self.deadline:
            trainer.should_stop = True


def measured(
    policy: str, tasks: int, members: int, overrides: list[str], iterations: int, deadline: float
) -> list[str]:
    """A row of the table."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    size = [f"policy={policy}", f"tasks_per_iteration={tasks}", f"group_size={members}", f"max_iterations={iterations}"]
    with tempfile.TemporaryDirectory() as folder:
        made, clock = experiment([*size, "env.train_tasks=64", *overrides], Path(folder)), Clock(deadline)
        made.trainer.callbacks.append(clock)  # pyright: ignore[reportAttributeAccessIssue]
        made.fit()
        on_gpu = made.trainer.strategy.root_device.type != "cpu"
    rows = clock.rows[1:] or clock.rows
    memory = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else peak_mebibytes()
    generated = [(row["tokens/generated"] + row["tokens/role_generated"]) / row["seconds"] for row in rows]
    trained = [row["tokens/trained"] / row["time/update"] for row in rows]
    seconds = [
        median([row["seconds"] for row in rows]),
        *(median([row[f"time/{one}"] for row in rows]) for one in PHASES),
    ]
    return [
        policy,
        f"{tasks} x {members}" + ("" if len(clock.rows) > 1 else " (first iteration)"),
        *(f"{value:.2f}" for value in seconds),
        f"{median(generated):,.0f}",
        f"{median(trained):,.0f}",
        f"{memory:,.0f}",
    ]


def main() -> int:
    from rti_exp.config.settings import SettingsError

    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=4, help="of each work; the first is not counted")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which nothing more is begun")
    parser.add_argument("--small", action="store_true", help="one small work, to see that it runs")
    options, overrides = parser.parse_known_args()
    if not any(text.startswith("trainer=") for text in overrides):
        overrides = ["trainer=gpu", *overrides]
    if "trainer=gpu" in overrides and not torch.cuda.is_available():
        print(f"error: torch {torch.__version__} finds no GPU here; take trainer=cpu --small", file=sys.stderr)
        return 2
    on_gpu = "trainer=gpu" in overrides
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    deadline = started + 60 * options.minutes
    print(f"{machine()}; {device}, fp32 matmul {matmul_rate('cuda' if on_gpu else 'cpu') / 1e9:,.0f} GFLOP/s\n")
    rows, left = [], []
    for policy, tasks, members in SMALL if options.small else WORKS:
        if rows and time.perf_counter() > deadline - 60:
            left.append(f"{policy} {tasks} x {members}: no time left")
            continue
        try:
            rows.append(measured(policy, tasks, members, overrides, options.iterations, deadline))
        except (SettingsError, torch.cuda.OutOfMemoryError) as error:
            left.append(f"{policy} {tasks} x {members}: {str(error).splitlines()[0]}")
        print(f"[{time.perf_counter() - started:.0f} s] {policy} {tasks} x {members}", file=sys.stderr)
    print(table(COLUMNS, rows))
    for text in left:
        print(f"\nnot measured: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
