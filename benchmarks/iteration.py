"""Seconds of a GRPO and of an RTI iteration, as multiples of the matrix-multiplication time of the same work.

    python benchmarks/iteration.py [--repeats 3] [--iterations 4] [any key of rti_exp.train ...]

One thread, the embedded world and policy, 12 tasks x 8. The floor counts 2 operations per weight and token that
is computed forward (prefilled, decoded, scored), 6 per weight and token that is trained, with the rate of a plain
fp32 `matmul` measured between the iterations; attention itself is left out. The two methods take turns, each from the
untrained weights, so that a drift of the machine's speed meets both. About half of the groups fail at the start
of training, which is when RTI costs most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from pytorch_lightning import Callback, Trainer

from rti_exp import build
from rti_exp.config import check
from rti_exp.paths import assets_root
from rti_exp.trainer import quiet, seed_everything
from rti_exp.types import Group

ARMS = {"GRPO": "gate.delta=0", "RTI": "gate.delta=5"}


def matmul_rate() -> float:
    """Operations per second of a 512-cubed fp32 matmul, best of 5 bursts of 20."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(20):
            torch.mm(a, b)
        best = max(best, 20 * 2 * 512**3 / (time.perf_counter() - started))
    return best


def experiment(overrides: list[str], directory: Path) -> build.Experiment:
    with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
        config = check(compose("train", overrides=["logger=none", "eval.tasks=0", *overrides]))
    quiet()
    seed_everything(config)
    return build.experiment(config, None, directory=directory)


class Meter(Callback):
    """Notes what each iteration took, and what a matmul of the same operations takes right after it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.before = 0
        self.started = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.before = forward_tokens(pl_module.engine)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seconds = time.perf_counter() - self.started
        weights = sum(parameter.numel() for parameter in pl_module.model.parameters())
        trained = sum(trained_length(group) for group in pl_module.last_groups)
        operations = (2 * (forward_tokens(pl_module.engine) - self.before) + 6 * trained) * weights
        row = {name: value for name, value in pl_module.last_metrics.items() if value is not None}
        self.rows.append({**row, "seconds": seconds, "floor": operations / matmul_rate(), "weights": weights})


def forward_tokens(engine: Any) -> int:
    return engine.prefilled_tokens + engine.generated_tokens + engine.scored_tokens


def trained_length(group: Group) -> int:
    """Tokens that the update computes: all of the trajectories of a group with signal."""
    if len({trajectory.reward for trajectory in group.trajectories if trajectory.valid}) < 2:
        return 0
    return sum(len(turn.context_ids) + len(turn.action_ids) for one in group.trajectories for turn in one.turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each method, each with a seed of its own")
    parser.add_argument("--iterations", type=int, default=4, help="iterations of each run; the first is not counted")
    options, overrides = parser.parse_known_args()
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    torch.set_num_threads(1)
    meters = {name: Meter() for name in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for name in list(ARMS) if repeat % 2 else list(reversed(ARMS)):
                keys = [ARMS[name], f"seed={repeat}", f"max_iterations={options.iterations}", *overrides]
                made = experiment(keys, Path(folder))
                meter = Meter()
                made.trainer.callbacks.append(meter)  # pyright: ignore[reportAttributeAccessIssue]
                made.fit()
                meters[name].rows += meter.rows[1:]
    print_table(meters)


def print_table(meters: dict[str, Meter]) -> None:
    counted = [len(meter.rows) for meter in meters.values()]
    weights = meters["GRPO"].rows[0]["weights"]
    print(
        f"torch {torch.__version__}, one thread, fp32 matmul {matmul_rate() / 1e9:.0f} GFLOP/s, {weights:.0f} weights, "
    )
    print(f"{counted} iterations, medians; seconds but for the multiple of the floor and the share of failed groups\n")
    phases = ("rollout", "roles", "score", "update")
    print("| method | iteration | floor | multiple | all-fail groups | " + " | ".join(phases) + " |")
    print("|---" * (5 + len(phases)) + "|")
    for name, meter in meters.items():
        multiple = statistics.median(row["seconds"] / row["floor"] for row in meter.rows)
        cells = [f"{middle(meter, 'seconds'):.2f}", f"{middle(meter, 'floor'):.3f}", f"{multiple:.1f}"]
        cells.append(f"{middle(meter, 'groups/all_failed'):.2f}")
        print("| " + " | ".join([name, *cells, *(f"{middle(meter, f'time/{phase}'):.2f}" for phase in phases)]) + " |")
    pairs = zip(meters["RTI"].rows, meters["GRPO"].rows, strict=True)
    ratio = statistics.median(one["seconds"] / other["seconds"] for one, other in pairs)
    print(f"\nRTI over GRPO, iteration by iteration of the same seed: median {ratio:.2f}")


def middle(meter: Meter, name: str) -> float:
    return statistics.median(row.get(name, 0.0) for row in meter.rows)


if __name__ == "__main__":
    sys.exit(main())
