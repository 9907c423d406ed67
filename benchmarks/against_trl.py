"""One optimizer step of GRPO: TRL's GRPOTrainer against rti_exp with corrector=none, on the same work.

    python benchmarks/against_trl.py [--sizes 16x8 64x8] [--work fixed town] [--repeats 3] [--steps 3]

`fixed`: 5 turns of 25 tokens with replies of 20, a signal in every group, a random model of the tiny policy's size.
`town`: the embedded world and policy as they come: ragged turns, groups without a signal. Each side runs in a process
of its own on one thread, in turns; its first step is not counted. Needs trl and datasets (benchmarks/README.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measure import experiment, machine, median, peak_mebibytes, table

from rti_exp.experiment.parts import default_environment

SIDES = ("rti_exp", "TRL")


@dataclass(frozen=True, kw_only=True)
class Work:
    """One optimizer step on `tasks` groups of `members` episodes."""

    fixed: bool
    tasks: int
    members: int
    steps: int
    turns: int = 5
    tokens: int = 25
    prompt: int = 30
    reply: int = 20
    micro_batch_tokens: int = 4096
    trainer: str = "cpu"

    @property
    def context(self) -> int:
        """Tokens of the longest episode."""
        return self.prompt + self.turns * self.tokens + (self.turns - 1) * self.reply if self.fixed else 96

    def town_tasks(self) -> Iterator[Any]:
        """The tasks of the steps, in the order in which a run of rti_exp takes them."""
        from rti_exp.training.tasks import TaskStream

        stream = TaskStream(default_environment("town").tasks("train"), tasks_per_iteration=self.tasks, seed=0)
        for step in range(1, self.steps + 1):
            yield from stream.iteration(step)

    def opening(self, number: int) -> list[dict[str, str]]:
        """The prompt of a row of TRL's data set."""
        if self.fixed:
            from fixed_work import words

            return [{"role": "user", "content": words(self.prompt - 4, f"train/{number}")}]
        from rti_exp.envs.town.world import TownEpisode

        if not hasattr(self, "_tasks"):
            object.__setattr__(self, "_tasks", list(self.town_tasks()))
        messages = TownEpisode(self._tasks[number]).messages  # pyright: ignore[reportAttributeAccessIssue]
        return [{"role": m.role, "content": m.content} for m in messages if m.role != "system"]


def ours(work: Work, folder: Path, output: Path) -> list[dict[str, float]]:
    """Seconds and tokens of each optimizer step of rti_exp."""
    import time

    import fixed_work
    from pytorch_lightning import Callback

    overrides = [f"trainer={work.trainer}", f"algorithm.micro_batch_tokens={work.micro_batch_tokens}"]
    overrides += [f"tasks_per_iteration={work.tasks}", f"group_size={work.members}", f"max_iterations={work.steps}"]
    if work.fixed:
        fixed_work.endless_turns()
        size = {"turns": work.turns, "tokens": work.tokens, "prompt": work.prompt, "reply": work.reply}
        count = max(64, work.tasks * work.steps)
        overrides += [*fixed_work.keys(folder, **size), f"env.train_tasks={count}"]
    else:
        overrides += ["corrector=none", "algorithm.updates=1"]
    made = experiment(overrides, output)
    steps: list[dict[str, float]] = []

    class Clock(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.wall, self.processor = time.perf_counter(), time.process_time()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seconds = time.perf_counter() - self.wall
            row = pl_module.last_metrics
            steps.append(
                {
                    "seconds": seconds,
                    "processor": time.process_time() - self.processor,
                    "generation": row["time/rollout"],
                    "update": row["time/update"],
                    "generated": row["tokens/generated"],
                    "trained": row["tokens/trained"],
                    "signal": row["groups/signal"],
                }
            )

    made.trainer.callbacks.append(Clock())  # pyright: ignore[reportAttributeAccessIssue]
    made.fit()
    return steps


def worker(arguments: argparse.Namespace) -> None:
    """One side's process: a JSON line at its end."""
    import torch

    torch.set_num_threads(1)
    work = Work(**json.loads(arguments.only))
    with tempfile.TemporaryDirectory() as output:
        if arguments.side == "TRL":
            import trl_side

            steps = trl_side.run(work, arguments.model, Path(output), micro_batch=arguments.micro_batch)
        else:
            steps = ours(work, arguments.model, Path(output))
    print(json.dumps({"steps": steps[1:], "memory": peak_mebibytes()}))


def measured(side: str, work: Work, model: Path, micro_batch: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, "--only", json.dumps(asdict(work)), "--model", str(model)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command += ["--micro-batch", str(micro_batch)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row_of(runs: list[dict[str, Any]]) -> dict[str, float]:
    steps = [step for run in runs for step in run["steps"]]
    seconds = {
        name: median([step[name] for step in steps]) for name in ("seconds", "processor", "generation", "update")
    }
    return {
        **seconds,
        "generated": median([step["generated"] / step["generation"] for step in steps]),
        "trained": median([step["trained"] / step["update"] for step in steps]),
        "generated_count": median([step["generated"] for step in steps]),
        "trained_count": median([step["trained"] for step in steps]),
        "signal": median([step["signal"] for step in steps]),
        "memory": max(run["memory"] for run in runs),
    }


COLUMNS = (
    *("work", "size", "side", "s a step", "processor s", "generation s", "update s"),
    *("generated", "a second", "trained", "a second", "groups with a signal", "peak MiB"),
)


def cells(work: str, size: str, side: str, row: dict[str, float]) -> list[str]:
    times = [f"{row[name]:.2f}" for name in ("seconds", "processor", "generation", "update")]
    tokens = [f"{row[name]:,.0f}" for name in ("generated_count", "generated", "trained_count", "trained")]
    return [work, size, side, *times, *tokens, f"{row['signal']:.0%}", f"{row['memory']:,.0f}"]


def ratios(work: str, size: str, ours: dict[str, float], theirs: dict[str, float]) -> list[str]:
    names = ("seconds", "processor", "generation", "update")
    return [
        work,
        size,
        *(f"{theirs[name] / ours[name]:.1f}" for name in names),
        f"{theirs['memory'] / ours['memory']:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["16x8", "64x8"], help="tasks x members")
    parser.add_argument("--work", nargs="+", choices=("fixed", "town"), default=["fixed", "town"])
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps of each process; the first is not counted")
    parser.add_argument("--micro-batch", type=int, default=32, help="TRL's episodes of one forward and backward pass")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="rti_exp's")
    parser.add_argument("--trainer", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--width", type=int, default=128, help="of the random model: 128 is the tiny policy's")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        worker(arguments)
        return
    rows, compared = [], []
    with tempfile.TemporaryDirectory() as folder:
        import fixed_work

        from rti_exp.config.paths import policy_folder

        fixed_work.save_model(Path(folder), width=arguments.width)
        for work in arguments.work:
            for size in arguments.sizes:
                tasks, members = map(int, size.split("x"))
                shape: dict[str, Any] = {} if work == "fixed" else {"turns": 6, "tokens": 32, "prompt": 20}
                shape |= {"micro_batch_tokens": arguments.micro_batch_tokens, "trainer": arguments.trainer}
                one = Work(fixed=work == "fixed", tasks=tasks, members=members, steps=arguments.steps, **shape)
                model = Path(folder) if one.fixed else policy_folder("builtin:tiny")
                runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
                for repeat in range(arguments.repeats):
                    for side in SIDES if repeat % 2 else reversed(SIDES):
                        runs[side].append(measured(side, one, model, arguments.micro_batch))
                found = {side: row_of(runs[side]) for side in SIDES}
                rows += [cells(work, size, side, found[side]) for side in SIDES]
                compared.append(ratios(work, size, found["rti_exp"], found["TRL"]))
    counted = arguments.repeats * (arguments.steps - 1)
    print(f"{machine()}, trl {version('trl')}; one thread each, in turns, medians of {counted} steps\n")
    print(table(COLUMNS, rows) + "\n")
    print("TRL over rti_exp:\n")
    print(table(("work", "size", "s a step", "processor s", "generation s", "update s", "peak memory"), compared))


if __name__ == "__main__":
    main()
