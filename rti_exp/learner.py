"""The Lightning module: one `training_step` is one RL iteration, rollout to optimizer step.

rollout -> interventions -> advantages -> samples -> mini-batches -> micro-batches -> loss -> step -> sync
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from rti_exp.batch import Batch, micro_batches, mini_batches, to_samples, trained_tokens
from rti_exp.distributed import gather_from_ranks, max_over_ranks, sum_over_ranks, world_size
from rti_exp.engines.base import Engine
from rti_exp.forward import TrainedPositions
from rti_exp.metrics import IterationReport, Stopwatch, UpdateStats, iteration_metrics, mean, merged
from rti_exp.objective.grpo import GRPO, LossStats
from rti_exp.settings import AlgorithmSettings, RunSettings
from rti_exp.tasks import IterationTasks
from rti_exp.types import Group, Sample, Task


class DivergedError(RuntimeError):
    """A loss or gradient is not finite; the weights are still those from before that optimizer step."""


class Rollouts(Protocol):
    """Rolls out groups; `rti_exp.rollout.collect.Collector`."""

    def collect(
        self,
        tasks: Sequence[Task],
        group_size: int,
        iteration: int,
        *,
        purpose: str = "rollout",
        temperature: float | None = None,
    ) -> list[Group]: ...


class Intervening(Protocol):
    """`rti_exp.intervention.pipeline.Interventions`; `seconds` and `role_tokens` are of the last call."""

    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def role_tokens(self) -> Mapping[str, int]: ...
    def __call__(self, groups: Sequence[Group], iteration: int) -> list[Group]: ...


class RTIModule(LightningModule):
    """Trains `model` by RL with rollout-time intervention.

    Optimization is manual. All forward passes, training's too, run in eval mode: dropout would make the policy
    that is trained another one than the policy that did the rollout.

    Each of the iteration's mini-batches takes one optimizer step on (sum of its token losses) / (trained tokens
    of the iteration) * (number of mini-batches): the scale of a step does not depend on `algorithm.updates`.
    Only samples with a signal count as trained; without any, weights and optimizer state stay bit-identical (with
    a KL term, beta > 0, every valid sample has one).

    Metrics go to the loggers with the RL iteration as x-axis: the logged key "step" is what Lightning takes as
    the step, and it survives a resume, which Lightning's own batch count does not.

    Args:
        model: The policy; the engine generates with this very object.
        engine: Its weights' version is stamped by `sync` after each iteration.
        interventions: None leaves all groups as they were sampled (plain GRPO).
        success_threshold: A trajectory succeeded iff its reward is at least this.

    Attributes:
        iteration: RL iterations done.
        policy_version: Iterations that changed the weights.
        last_groups: Groups of the last iteration, of all ranks, merged after the interventions.
        last_metrics: Its flat metrics (`rti_exp.metrics.iteration_metrics`).
        updating: True while weights and counters are out of step; a checkpoint would be no iteration's.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        engine: Engine,
        collector: Rollouts,
        interventions: Intervening | None,
        algorithm: GRPO,
        settings: AlgorithmSettings,
        run: RunSettings,
        success_threshold: float = 1.0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.engine = engine
        self.collector = collector
        self.interventions = interventions
        self.algorithm = algorithm
        self.settings = settings
        self.run = run
        self.success_threshold = success_threshold
        self.reference = _frozen_copy(model) if algorithm.needs_reference else None
        self._policy_forward = TrainedPositions(model)
        self._reference_forward = TrainedPositions(self.reference) if self.reference is not None else None
        self.iteration = 0
        self.policy_version = 0
        self.updating = False
        self.last_groups: list[Group] = []
        self.last_metrics: dict[str, float | None] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [parameter for parameter in self.model.parameters() if parameter.requires_grad],
            lr=self.settings.learning_rate,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            weight_decay=self.settings.weight_decay,
        )

    def training_step(self, tasks: IterationTasks) -> None:
        """One RL iteration on this rank's tasks.

        Raises:
            DivergedError: a loss or gradient norm is not finite.
            EngineUnavailable: the policy's engine stayed down.
            RuntimeError: the tasks are another iteration's (only one of module and data was restored).
        """
        iteration, stopwatch = self.iteration + 1, Stopwatch()
        if tasks.iteration != iteration:
            raise RuntimeError(f"tasks of iteration {tasks.iteration} came where those of {iteration} were due")
        with stopwatch.time("iteration"):
            self.eval()
            groups, tokens = self._rollout(tasks.tasks, iteration, stopwatch)
            advantages = [self.algorithm.advantages(group) for group in groups]
            samples = self._samples(groups, advantages)
            with stopwatch.time("update"):
                self.updating = True
                update = self._update(samples, iteration)
                self.policy_version += update.steps > 0
                self.engine.sync(self.policy_version)
                self.iteration = iteration
                self.updating = False
        report = IterationReport(groups=groups, advantages=advantages, tokens=tokens, seconds=stopwatch.seconds)
        report = merged(gather_from_ranks(report))
        self.last_groups = list(report.groups)
        self.last_metrics = iteration_metrics(report, update, success_threshold=self.success_threshold)
        logged = {name: float(value) for name, value in self.last_metrics.items() if value is not None}
        self.log_dict({**logged, "step": float(iteration)}, on_step=True, on_epoch=False, batch_size=len(tasks))

    @torch.no_grad()
    def _rollout(
        self, tasks: Sequence[Task], iteration: int, stopwatch: Stopwatch
    ) -> tuple[list[Group], dict[str, int]]:
        """Groups after the interventions, and the tokens that they took; adds to the stopwatch."""
        generated, scored = self.engine.generated_tokens, self.engine.scored_tokens
        with stopwatch.time("rollout"):
            groups = self.collector.collect(tasks, self.run.group_size, iteration)
        tokens = {
            "generated": self.engine.generated_tokens - generated,
            "scored": self.engine.scored_tokens - scored,
        }
        if self.interventions is None:
            return groups, tokens
        groups = self.interventions(groups, iteration)
        for phase, seconds in self.interventions.seconds.items():
            phase = "rollout" if phase == "continue" else phase
            stopwatch.seconds[phase] = stopwatch.seconds.get(phase, 0.0) + seconds
        spent = self.interventions.role_tokens
        tokens["generated"] += spent["continued"]
        return groups, {**tokens, "role_generated": spent["generated"], "role_scored": spent["scored"]}

    def _samples(self, groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> list[Sample]:
        # Without a KL term, skipping advantage 0 is exact: its loss and gradient are 0.
        keep_zero = self.algorithm.needs_reference
        return [
            sample
            for group, values in zip(groups, advantages, strict=True)
            for sample in to_samples(group, values, self.settings.scope, keep_zero_advantage=keep_zero)
        ]

    def _update(self, samples: Sequence[Sample], iteration: int) -> UpdateStats:
        """One optimizer step for each mini-batch that has samples on any rank; none without signal."""
        parts = mini_batches(samples, self.settings.updates, self.run.seed, iteration)
        counts = torch.tensor([trained_tokens(part) for part in parts], device=self.device)
        counts = sum_over_ranks(counts).tolist()
        total, steps = sum(counts), sum(count > 0 for count in counts)
        if not steps:
            return UpdateStats()
        norms: list[float] = []
        sums = torch.zeros(4, dtype=torch.float64)
        ratio_max = 0.0
        for part, count in zip(parts, counts, strict=True):
            if not count:
                continue
            batches = micro_batches(part, max_tokens=self.settings.micro_batch_tokens, total_trained_tokens=total)
            stats, largest, norm = self._step(batches, scale=steps * world_size(), iteration=iteration)
            sums += stats
            ratio_max = max(ratio_max, largest)
            norms.append(norm)
        policy_loss, kl, clip_share, entropy = sums.tolist()
        return UpdateStats(
            steps=steps,
            trained_tokens=total,
            policy_loss=policy_loss,
            kl=kl if self.algorithm.needs_reference else None,
            clip_share=clip_share,
            ratio_max=ratio_max,
            entropy=entropy,
            gradient_norm=mean(norms),
        )

    def _step(self, batches: Sequence[Batch], *, scale: float, iteration: int) -> tuple[Tensor, float, float]:
        """One optimizer step; (sums of policy loss, KL, clip share, entropy; largest ratio; gradient norm)."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        ratio_max = torch.zeros(1, dtype=torch.float64, device=self.device)
        for index, batch in enumerate(batches):
            with self._gradient_sync(last=index == len(batches) - 1):
                loss, stats, entropy = self._loss(batch.to(self.device))
                self.manual_backward(loss * scale)
            sums += torch.stack([stats.policy, stats.kl, stats.clip_share, entropy]).double()
            ratio_max = torch.maximum(ratio_max, stats.ratio_max.double())
        if not batches:
            # A rank without samples still takes part in the reduction of the gradients.
            self.manual_backward(sum(parameter.sum() * 0.0 for parameter in self.model.parameters()))  # pyright: ignore
        sums, ratio_max = sum_over_ranks(sums).cpu(), max_over_ranks(ratio_max).item()
        _require_finite(sums[0].item(), "policy loss", iteration)
        _require_finite(sums[1].item(), "KL to the reference", iteration)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.gradient_clip).item()
        _require_finite(norm, "gradient norm", iteration)
        optimizer.step()
        optimizer.zero_grad()
        return sums, ratio_max, norm

    def _loss(self, batch: Batch) -> tuple[Tensor, LossStats, Tensor]:
        """Loss, its statistics, and the batch's share of the mean entropy."""
        policy = self._policy_forward(batch)
        reference_BT = None
        if self._reference_forward is not None:
            with torch.no_grad():
                reference_BT = self._reference_forward(batch).log_probs_BT
        loss, stats = self.algorithm.loss(policy.log_probs_BT, batch, reference_BT)
        return loss, stats, policy.entropy_BT.sum() / batch.total_trained_tokens

    @contextmanager
    def _gradient_sync(self, *, last: bool) -> Iterator[None]:
        """Under DDP gradients are reduced in the last micro-batch's backward only."""
        wrapped = self.trainer.model
        with wrapped.no_sync() if isinstance(wrapped, DistributedDataParallel) and not last else nullcontext():
            yield

    def training_state(self) -> dict[str, Any]:
        """What a resumed run needs: tensors and plain types only. The reference is rebuilt, not stored."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        return {
            "iteration": self.iteration,
            "policy_version": self.policy_version,
            "model": self.model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }

    def restore_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`, in place; call it once the optimizer exists (`on_fit_start`)."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        self.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        self.iteration = state["iteration"]
        self.policy_version = state["policy_version"]
        self.engine.sync(self.policy_version)


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).requires_grad_(False).eval()


def _require_finite(value: float, quantity: str, iteration: int) -> None:
    if not math.isfinite(value):
        raise DivergedError(f"iteration {iteration}: the {quantity} is {value}; the weights were left as they were")
