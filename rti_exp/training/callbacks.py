"""Callbacks of a run: records, evaluation, the token budget, and their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from rti_exp.config.settings import EvaluationSettings
from rti_exp.objective.passk import pass_at_k
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.distributed import gather_from_ranks, interleave
from rti_exp.training.failure_limits import require_valid_rollouts
from rti_exp.training.iteration import Stopwatch
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import mean, success_count
from rti_exp.training.records import Decode, intervention_records, rollout_record
from rti_exp.training.run_directory import RunDirectory, learner
from rti_exp.types import Group, Task


def training_callbacks(
    *,
    run: RunDirectory | None,
    decode: Decode,
    recorder_every: int,
    heldout: Sequence[Task],
    evaluation: EvaluationSettings,
    checkpoint: IterationCheckpoint,
    probe: Callback | None = None,
) -> list[Callback]:
    """All callbacks of a run in their order: a checkpoint vouches that the rows up to its iteration are written.

    Args:
        run: None on ranks other than 0, which write nothing.
    """
    return [
        RecorderCallback(run=run, decode=decode, every=recorder_every, stopwatch=checkpoint.stopwatch),
        EvaluationCallback(run=run, tasks=heldout, settings=evaluation),
        *([] if probe is None else [probe]),
        checkpoint,
        BudgetCallback(),
    ]


class RecorderCallback(Callback):
    """After each iteration, writes its metrics row, all its interventions, and every `every` iterations its rollouts.

    The row's `time/logging` is the time for writing the iteration's interventions and rollouts, and the row and
    checkpoint of the iteration before.

    Args:
        run: None on ranks that write nothing.
        decode: Token ids to text, control tokens visible.
        every: Iterations between two recordings of rollouts; 0 records none.
        stopwatch: Its phase "logging" is shared with the checkpoints.
    """

    def __init__(
        self, *, run: RunDirectory | None, decode: Decode, every: int, stopwatch: Stopwatch | None = None
    ) -> None:
        self.run = run
        self.decode = decode
        self.every = every
        self.stopwatch = stopwatch or Stopwatch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.run is None:
            return
        module = learner(pl_module)
        with self.stopwatch.time("logging"):
            self._record(self.run, module)
        row = {"kind": "train", "iteration": module.iteration, **module.last_metrics}
        row["time/logging"] = self.stopwatch.take("logging")
        with self.stopwatch.time("logging"):
            self.run.append_metrics(row)

    def _record(self, run: RunDirectory, module: RTIModule) -> None:
        iteration = module.last_iteration
        assert iteration is not None
        number, groups = iteration.number, iteration.groups
        records = [record for group in groups for record in intervention_records(number, group, self.decode)]
        if records:
            run.append_interventions(records)
        if self.every and number % self.every == 0:
            streams = zip(groups, iteration.advantages, iteration.samples, strict=True)
            run.append_rollouts(rollout_record(number, *stream, self.decode) for stream in streams)


class EvaluationCallback(Callback):
    """Rolls out held-out tasks without intervening: before the first iteration, every `every`, and after the last.

    pass@1 and pass@k (k = `settings.samples`) are unbiased; infrastructure failures are excluded from both and
    counted. A task with fewer than k valid samples has no unbiased pass@k and is excluded from its mean. Tokens of an
    evaluation do not count as the run's compute.

    Args:
        run: None on ranks that write nothing.
        tasks: All held-out tasks; evaluated are the first `settings.tasks` of an interleave over families.
        settings: `eval.*`; tasks 0 switches evaluation off.
    """

    def __init__(self, *, run: RunDirectory | None, tasks: Sequence[Task], settings: EvaluationSettings) -> None:
        self.run = run
        self.settings = settings
        self.tasks = interleaved_families(tasks)[: settings.tasks]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = learner(pl_module)
        if module.iteration == 0:
            self._evaluate(trainer, module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module, every = learner(pl_module), self.settings.every
        if module.finished or (every and module.iteration % every == 0):
            self._evaluate(trainer, module)

    def _evaluate(self, trainer: Trainer, module: RTIModule) -> None:
        if not self.tasks:
            return
        started = time.perf_counter()
        module.eval()
        with trainer.precision_plugin.forward_context():  # the trained policy, in the trainer's precision
            groups = module.rollouts.collector.collect(
                self.tasks[trainer.global_rank :: trainer.world_size],
                self.settings.samples,
                module.iteration,
                purpose="eval",
                temperature=self.settings.temperature,
            )
        # The evaluation's cache entries would change the shapes of the next batches, and so the last digits.
        module.engine.sync(module.policy_version)
        groups = interleave(gather_from_ranks(groups))
        require_valid_rollouts(groups, f"evaluation after iteration {module.iteration}", module.settings.limits)
        row = evaluation_row(module.iteration, groups, self.settings.samples, module.settings.success_threshold)
        if self.run is not None:
            self.run.append_metrics({**row, "time/eval": time.perf_counter() - started})
        logged = {f"eval/{name}": row[name] for name in row if name.startswith("pass@") and row[name] is not None}
        for logger in trainer.loggers:
            logger.log_metrics(logged, step=module.iteration)


def interleaved_families(tasks: Sequence[Task]) -> list[Task]:
    """One task of each family in turn, families in order of first appearance."""
    families: dict[str, list[Task]] = {}
    for task in tasks:
        families.setdefault(task.family, []).append(task)
    return interleave(list(families.values()))


def evaluation_row(
    iteration: int, groups: Sequence[Group], samples: int, success_threshold: float, split: str = "heldout"
) -> dict[str, Any]:
    """The eval row of metrics.jsonl: pass@1, pass@`samples` (null without a task), and counts for each task."""
    counts = [(group.task, *success_count(group.sampled, success_threshold)) for group in groups]
    return {
        "kind": "eval",
        "iteration": iteration,
        "split": split,
        **{
            f"pass@{k}": mean([pass_at_k(valid, successes, k) for _, valid, successes in counts if valid >= k])
            for k in sorted({1, samples})
        },
        "infrastructure_failures": sum(len(group.sampled) for group in groups) - sum(valid for _, valid, _ in counts),
        "tasks": [
            {"task_id": task.id, "family": task.family, "samples": valid, "successes": successes}
            for task, valid, successes in counts
        ],
    }


class BudgetCallback(Callback):
    """Ends training once the module is finished: after the iteration that spends its budget, or at the start of a
    resumed run that had spent it."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = learner(pl_module).finished

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = learner(pl_module).finished
