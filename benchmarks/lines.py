"""What the seconds of each phase are spent on: matmuls, attention, other compiled steps, torch's operations, Python.

    python benchmarks/lines.py [--iterations 6] [--tasks 16] [any key of rti_exp.train ...]

GRPO and RTI on the embedded world, and GRPO on work of fixed length (benchmarks/fixed_work.py), under Python's
profiler. It lengthens Python's own share, by half and more: the table tells what to look at, benchmarks/phases.py how
long it takes. Two iterations at the beginning are not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fixed_work import endless_turns, keys, save_model
from measure import experiment, machine, table

NOT_COUNTED = 2
PHASES = ("rollout", "roles", "score", "continue", "update")
MATMULS = ("torch.mm>", "addmm", "bmm", "_nn.linear>", "mkldnn", "matmul")
KINDS = ("matmuls", "attention", "other compiled steps", "backward, the rest", "other operations of torch", "Python")


def kind_of(file: str, name: str) -> str:
    """Which of `KINDS` a function's own time is."""
    if file == "~":
        if any(part in name for part in MATMULS):
            return "matmuls"
        if "scaled_dot_product" in name:
            return "attention"
        if "run_backward" in name:
            return "backward, the rest"
        return "other operations of torch" if "torch" in name else "Python"
    if file.endswith("kernels.py"):
        return "attention" if "attend" in name else "other compiled steps"
    return "Python"


class Profiles:
    """A profile for each phase; one at a time is on."""

    def __init__(self) -> None:
        self.made: dict[str, cProfile.Profile] = {}
        self.open: list[cProfile.Profile] = []
        self.iterations = 0

    @contextmanager
    def on(self, phase: str) -> Iterator[None]:
        if self.iterations < NOT_COUNTED:
            yield
            return
        profile = self.made.setdefault(phase, cProfile.Profile())
        if self.open:
            self.open[-1].disable()
        self.open.append(profile)
        profile.enable()
        try:
            yield
        finally:
            self.open.pop().disable()
            if self.open:
                self.open[-1].enable()

    def lines(self, work: str) -> list[list[str]]:
        counted = self.iterations - NOT_COUNTED
        lines: list[list[str]] = []
        for phase in (phase for phase in PHASES if phase in self.made):
            spent: dict[str, float] = dict.fromkeys(KINDS, 0.0)
            stats: Any = pstats.Stats(self.made[phase])
            for (file, _, name), (_, _, own, _, _) in stats.stats.items():
                spent[kind_of(file, name)] += own
            total = sum(spent.values())
            shares = [f"{spent[kind] / total:.0%}" for kind in KINDS]
            lines.append([work, phase, f"{1e3 * total / counted:.0f}", *shares])
        return lines


def profiled(overrides: Sequence[str], work: str) -> list[list[str]]:
    from rti_exp.intervention.cost import CostMeter
    from rti_exp.training.learner import RTIModule
    from rti_exp.training.policy_update import PolicyUpdate

    profiles = Profiles()
    roll_out, update, stage = RTIModule._roll_out, PolicyUpdate.__call__, CostMeter.stage

    def profiled_roll_out(self: Any, *arguments: Any) -> Any:
        with profiles.on("rollout"):
            return roll_out(self, *arguments)

    def profiled_update(self: Any, *arguments: Any) -> Any:
        with profiles.on("update"):
            stats = update(self, *arguments)
        profiles.iterations += 1
        return stats

    @contextmanager
    def profiled_stage(self: Any, name: str) -> Iterator[None]:
        with profiles.on(name), stage(self, name):
            yield

    RTIModule._roll_out, PolicyUpdate.__call__, CostMeter.stage = profiled_roll_out, profiled_update, profiled_stage  # pyright: ignore
    try:
        with tempfile.TemporaryDirectory() as folder:
            experiment(overrides, Path(folder)).fit()
    finally:
        RTIModule._roll_out, PolicyUpdate.__call__, CostMeter.stage = roll_out, update, stage
    return profiles.lines(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6, help="counted iterations")
    parser.add_argument("--tasks", type=int, default=16, help="groups of 8 in an iteration")
    options, overrides = parser.parse_known_args()
    torch.set_num_threads(1)
    shared = [f"tasks_per_iteration={options.tasks}", f"max_iterations={options.iterations + NOT_COUNTED}", *overrides]
    lines = profiled(["gate.delta=0", *shared], "GRPO") + profiled(["gate.delta=5", *shared], "RTI")
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        endless_turns()
        lines += profiled([*keys(Path(folder)), *shared], "fixed length")
    print(f"{machine()}; one thread, {options.tasks} x 8; under a profiler\n")
    print(table(("work", "phase", "ms an iteration", *KINDS), lines))


if __name__ == "__main__":
    sys.exit(main())
