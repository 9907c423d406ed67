"""What the benchmarks share: the machine's matmul rate, a process's memory, Markdown tables, a run without records."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rti_exp.experiment.build import Experiment


def matmul_rate(device: str = "cpu") -> float:
    """Operations per second of a plain 512-cubed matmul (4096-cubed on a GPU), the best of 5 bursts."""
    import torch

    side, count = (512, 20) if device == "cpu" else (4096, 10)
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    best = 0.0
    for _ in range(5):
        finish(device)
        started = time.perf_counter()
        for _ in range(count):
            torch.mm(a, b)
        finish(device)
        best = max(best, count * 2 * side**3 / (time.perf_counter() - started))
    return best


def onednn_rate() -> float:
    """The same on the CPU by oneDNN, which torch itself uses for other dtypes only."""
    import torch

    side, count, best = 512, 20, 0.0
    a, b = torch.randn(side, side), torch.randn(side, side)
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(count):
            torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        best = max(best, count * 2 * side**3 / (time.perf_counter() - started))
    return best


def finish(device: str) -> None:
    """Wait for what a GPU has still to do."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()


def peak_mebibytes() -> float:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    """One line for the top of a table: processor, versions, how busy the machine is."""
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, {packages}"
    )


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *map(list, rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def exponent(first: tuple[float, float], last: tuple[float, float]) -> float:
    """The power p of cost ~ size^p through two (size, cost) points; 1 is linear."""
    import math

    return math.log(last[1] / first[1]) / math.log(last[0] / first[0])


def experiment(overrides: Sequence[str], directory: Path, run: Any = None) -> Experiment:
    """The experiment of a config, without W&B and evaluation unless the overrides say otherwise."""
    from rti_exp.config.check import check
    from rti_exp.config.compose import composed
    from rti_exp.experiment.build import build_experiment
    from rti_exp.experiment.trainer import prepare_process

    config = check(composed(["logger=none", "eval.tasks=0", "probe=none", *overrides]))
    prepare_process(config.run.seed, config.trainer.threads)
    return build_experiment(config, run, directory=directory)
