"""Rollout, roles, scoring and update against the time that a plain matmul takes for the same operations.

    python benchmarks/phases.py [--repeats 2] [--iterations 4] [--tasks 16] [any key of rti_exp.train ...]

The embedded world and policy with `gate.delta=5` (RTI) and 0 (GRPO), in turns, each from the untrained weights, and
GRPO on work of fixed length (benchmarks/fixed_work.py). Operations: 2 for each weight that a token passes forward (the
head's only where logits are wanted), 6 where it is trained, and 4 or 12 times layers * heads * head width * context
for its attention. Tokens are those that the work needs: no padding, no finished rows; of the update, all that the rows
hold, and in a second line those that are left where rows begin alike. The rate is that of a plain
matmul, measured between the iterations. RTI's machinery (roles, scoring, continuing) is told apart from the tokens that
it adds to train.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fixed_work import endless_turns, keys, save_model
from measure import experiment, machine, matmul_rate, median, onednn_rate, table
from pytorch_lightning import Callback

ONCE = "update, shared tokens once"
"""The update again, against the floor of what is left where rows begin alike: the part that needs computing."""
PHASES = ("rollout", "roles", "score", "update", ONCE)


@dataclass
class Work:
    """Tokens of one phase that pass forward, that want logits, and the sum of their contexts."""

    tokens: int = 0
    logits: int = 0
    contexts: int = 0


@dataclass
class Counts:
    """What the engine and the update had to do, by phase, since the last `take`."""

    phase: str = "rollout"
    work: dict[str, Work] = field(default_factory=dict)
    continue_seconds: float = 0.0

    def take(self) -> dict[str, Work]:
        work, self.work = self.work, {}
        return {phase: work.get(phase, Work()) for phase in PHASES}

    def add(self, phase: str, tokens: int, logits: int, contexts: int) -> None:
        work = self.work.setdefault(phase, Work())
        work.tokens += tokens
        work.logits += logits
        work.contexts += contexts


def count_into(counts: Counts) -> None:
    """From now on, in this process, forward passes are counted."""
    from rti_exp.compiled_qwen3.packed_decoder import PackedDecoder
    from rti_exp.engines.compiled_forward import CompiledForward
    from rti_exp.engines.local import LocalEngine
    from rti_exp.engines.transformers_forward import TransformersForward
    from rti_exp.intervention.cost import CostMeter
    from rti_exp.training.token_log_probs import TrainedPositions

    stage, generate, train = CostMeter.stage, LocalEngine._generate, TrainedPositions.__call__
    states = PackedDecoder.states

    def counting(feed: Any) -> Any:
        def counted_feed(self: Any, cache: Any, spans: Sequence[Any], **rest: Any) -> Any:
            for span in spans:
                contexts = (span.end * (span.end + 1) - span.start * (span.start + 1)) // 2
                counts.add(counts.phase, span.end - span.start, len(span.targets), contexts)
            return feed(self, cache, spans, **rest)

        return counted_feed

    def counted_generate(self: Any, requests: Sequence[Any]) -> Any:
        completions = generate(self, requests)
        for request, completion in zip(requests, completions, strict=True):
            first, count = len(request.prompt_ids), len(completion.token_ids)
            counts.add(counts.phase, count, count, count * first + count * (count - 1) // 2)
        return completions

    def counted_training(self: Any, batch: Any) -> Any:
        lengths = (batch.lengths_B - 1).tolist()
        contexts = sum(length * (length + 1) // 2 for length in lengths)
        counts.add("update", sum(lengths), int(batch.loss_mask_BT.sum()), contexts)
        return train(self, batch)

    def counted_packed(self: Any, packing: Any, tokens_M: Any) -> Any:
        if torch.is_grad_enabled():
            contexts = int((packing.positions_N + 1).sum())
            counts.add(ONCE, len(packing.token_ids_N), len(tokens_M), contexts)
        return states(self, packing, tokens_M)

    @contextmanager
    def counted_stage(self: Any, name: str) -> Iterator[None]:
        counts.phase = "rollout" if name == "continue" else name
        start = time.perf_counter()
        try:
            with stage(self, name):
                yield
        finally:
            counts.phase = "rollout"
            if name == "continue":
                counts.continue_seconds += time.perf_counter() - start

    for forward in (CompiledForward, TransformersForward):
        forward.feed = counting(forward.feed)  # pyright: ignore[reportAttributeAccessIssue]
    LocalEngine._generate = counted_generate  # pyright: ignore[reportAttributeAccessIssue]
    TrainedPositions.__call__ = counted_training  # pyright: ignore[reportAttributeAccessIssue]
    PackedDecoder.states = counted_packed  # pyright: ignore[reportAttributeAccessIssue]
    CostMeter.stage = counted_stage  # pyright: ignore[reportAttributeAccessIssue]


def operations(model: Any, phase: str, work: Work) -> float:
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(parameter.numel() for parameter in model.parameters()) - head  # tied, or head and embedding
    if not config.tie_word_embeddings:
        body -= head
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * work.contexts
    forward = 2 * (body * work.tokens + head * work.logits) + attention
    return forward * (3 if phase in ("update", ONCE) else 1)


class Meter(Callback):
    """Notes each iteration's seconds, and its floor."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.rows: list[dict[str, float]] = []
        self.wall = self.processor = 0.0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.counts.take()
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        seconds, processor = time.perf_counter() - self.wall, time.process_time() - self.processor
        rate, work = matmul_rate(pl_module.device.type), self.counts.take()
        row = {name: value for name, value in pl_module.last_metrics.items() if value is not None}
        row |= {f"floor/{phase}": operations(pl_module.model, phase, work[phase]) / rate for phase in PHASES}
        row |= {f"tokens/{phase}": work[phase].tokens for phase in PHASES}
        row[f"time/{ONCE}"] = row["time/update"]
        row["continue"], self.counts.continue_seconds = self.counts.continue_seconds, 0.0
        self.rows.append({**row, "seconds": seconds, "processor": processor, "rate": rate})


def measured(overrides: Sequence[str], counts: Counts) -> list[dict[str, float]]:
    """The rows of a run's iterations but the first."""
    with tempfile.TemporaryDirectory() as folder:
        made = experiment(overrides, Path(folder))
        meter = Meter(counts)
        made.trainer.callbacks.append(meter)  # pyright: ignore[reportAttributeAccessIssue]
        made.fit()
    return meter.rows[1:]


def phase_rows(name: str, rows: Sequence[dict[str, float]]) -> list[list[str]]:
    lines = []
    for phase in PHASES:
        seconds, floor = (median([row[f"{what}/{phase}"] for row in rows]) for what in ("time", "floor"))
        if floor > 0 and seconds > 0:
            ratio = median([row[f"time/{phase}"] / row[f"floor/{phase}"] for row in rows if row[f"floor/{phase}"] > 0])
            tokens = median([row[f"tokens/{phase}"] for row in rows])
            lines.append(
                [name, phase, f"{tokens:,.0f}", f"{seconds:.3f}", f"{floor:.3f}", f"{ratio:.1f}", f"{1 / ratio:.0%}"]
            )
    return lines


def comparison(grpo: Sequence[dict[str, float]], rti: Sequence[dict[str, float]]) -> str:
    """How much longer RTI's iteration is, as a whole and without the tokens that it adds to train."""
    pairs = list(zip(rti, grpo, strict=True))

    def ratio(of: Any) -> str:
        return f"{median([of(one, other) for one, other in pairs]):.2f}"

    def machinery(row: dict[str, float]) -> float:
        return row["time/roles"] + row["time/score"] + row["continue"]

    rows = [
        ["groups that all failed", f"{median([row['groups/all_failed'] for row in rti]):.0%}"],
        ["whole iteration, RTI over GRPO", ratio(lambda one, other: one["seconds"] / other["seconds"])],
        ["the same in processor seconds", ratio(lambda one, other: one["processor"] / other["processor"])],
        [
            "GRPO's iteration and RTI's machinery over GRPO's iteration",
            ratio(lambda one, other: (other["seconds"] + machinery(one)) / other["seconds"]),
        ],
        ["update alone, RTI over GRPO", ratio(lambda one, other: one["time/update"] / other["time/update"])],
        ["tokens that the update computes, RTI over GRPO", ratio(lambda a, b: a["tokens/update"] / b["tokens/update"])],
    ]
    return table(("measure", "median"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, each with a seed of its own")
    parser.add_argument("--iterations", type=int, default=4, help="iterations of each run; the first is not counted")
    parser.add_argument("--tasks", type=int, default=16, help="groups of 8 in an iteration")
    options, overrides = parser.parse_known_args()
    torch.set_num_threads(1)
    counts = Counts()
    count_into(counts)
    shared = [f"tasks_per_iteration={options.tasks}", f"max_iterations={options.iterations}", *overrides]
    arms = {"GRPO": ["gate.delta=0"], "RTI": ["gate.delta=5"]}
    rows: dict[str, list[dict[str, float]]] = {"GRPO": [], "RTI": [], "fixed length": []}
    for repeat in range(options.repeats):
        for name in arms if repeat % 2 else reversed(arms):
            rows[name] += measured([*arms[name], f"seed={repeat}", *shared], counts)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        endless_turns()
        rows["fixed length"] = measured([*keys(Path(folder)), *shared], counts)
    rate = median([row["rate"] for found in rows.values() for row in found])
    rates = f"matmul {rate / 1e9:.0f} GFLOP/s (oneDNN's {onednn_rate() / 1e9:.0f})"
    print(f"{machine()}; one thread, {rates}; {options.tasks} x 8\n")
    columns = ("work", "phase", "tokens computed", "seconds", "floor", "over the floor", "utilisation")
    print(table(columns, [line for name, found in rows.items() for line in phase_rows(name, found)]) + "\n")
    print(comparison(rows["GRPO"], rows["RTI"]))


if __name__ == "__main__":
    sys.exit(main())
