"""How the cost of an iteration grows: with tasks, members, turns, context and vocabulary; and what recording costs.

    python benchmarks/growth.py [--repeats 2] [--only tasks members turns context vocabulary recording] [any key ...]

Work of fixed length (benchmarks/fixed_work.py), 8 tasks x 8, 3 turns of 16 tokens, unless the table says otherwise.
The exponent p is that of cost ~ size^p between the first and the last size; 1 is linear. Processor seconds, medians,
one thread. `recording` is a run of the embedded world with the default records and checkpoints, and without
(benchmarks/recording.py), in at least three rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fixed_work import CONTROL, endless_turns, keys, save_model
from measure import experiment, exponent, machine, median, table
from pytorch_lightning import Callback
from recording import BESIDE, SHARE, shares, side_by_side

SIZES: dict[str, Sequence[int]] = {
    "tasks": (8, 16, 32, 64),
    "members": (8, 16, 32, 64),
    "turns": (2, 4, 8, 16),
    "context": (32, 128, 512, 2048),
    "vocabulary": (1024, 8192, 32768, 151936),
}
TOKENS, REPLY = 16, 12


class Clock(Callback):
    """Processor seconds of each iteration, and its phases' seconds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.started = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.started = time.process_time()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seconds, row = time.process_time() - self.started, pl_module.last_metrics
        share = seconds / row["time/iteration"]
        phases = {phase: row[f"time/{phase}"] * share for phase in ("rollout", "update")}
        self.rows.append({"seconds": seconds, **phases, "generated": row["tokens/generated"]})


def iteration(what: str, size: int, repeats: int, others: Sequence[str]) -> dict[str, float]:
    """Medians over `repeats` iterations, after one that is not counted."""
    work: dict[str, int] = {"tasks": 8, "members": 8, "turns": 3, "context": 24, "vocabulary": 1024, what: size}
    with tempfile.TemporaryDirectory() as folder:
        whole = work["context"] + work["turns"] * (TOKENS + REPLY)
        save_model(Path(folder), vocabulary=work["vocabulary"], positions=whole)
        shape = {"turns": work["turns"], "tokens": TOKENS, "prompt": work["context"], "reply": REPLY}
        overrides = [
            *keys(Path(folder), **shape, words=work["vocabulary"] - len(CONTROL)),
            f"tasks_per_iteration={work['tasks']}",
            f"group_size={work['members']}",
            f"max_iterations={1 + repeats}",
            *others,
        ]
        made, clock = experiment(overrides, Path(folder)), Clock()
        made.trainer.callbacks.append(clock)  # pyright: ignore[reportAttributeAccessIssue]
        made.fit()
    rows = clock.rows[1:]
    return {name: median([row[name] for row in rows]) for name in rows[0]}


def growth_rows(what: str, found: Mapping[int, Mapping[str, float]]) -> list[list[str]]:
    first, last = min(found), max(found)
    lines = []
    for phase in ("seconds", "rollout", "update"):
        power = exponent((first, found[first][phase]), (last, found[last][phase]))
        steps = ", ".join(f"{size:,}: {row[phase]:.2f}" for size, row in found.items())
        lines.append([what, "iteration" if phase == "seconds" else phase, steps, f"{power:.2f}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="counted iterations of each size")
    parser.add_argument("--only", nargs="+", choices=(*SIZES, "recording"), default=[*SIZES, "recording"])
    parser.add_argument(
        "--smallest", type=int, default=len(SIZES["tasks"]), help="how many sizes, from the smallest on"
    )
    options, others = parser.parse_known_args()
    torch.set_num_threads(1)
    print(f"{machine()}; one thread\n")
    if "recording" in options.only:
        print(table(SHARE, shares(others)) + "\n")
        print(table(BESIDE, side_by_side(others, max(3, options.repeats))) + "\n")
    endless_turns()
    rows = []
    for what in [name for name in SIZES if name in options.only]:
        sizes = SIZES[what][: options.smallest]
        rows += growth_rows(what, {size: iteration(what, size, options.repeats, others) for size in sizes})
    if rows:
        print(table(("size", "phase", "processor seconds", "exponent"), rows))


if __name__ == "__main__":
    main()
