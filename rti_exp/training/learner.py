"""The Lightning module: one `training_step` is one RL iteration, rollout to optimizer step.

rollout -> interventions -> advantages -> samples -> mini-batches -> micro-batches -> loss -> step -> sync
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from rti_exp.config.group_settings import LimitSettings
from rti_exp.config.settings import RunSettings, UpdateSettings
from rti_exp.engines.base import Engine
from rti_exp.models.weights import kept_weights, restore_weights
from rti_exp.objective.algorithm import Algorithm, LossStats
from rti_exp.training.batch import Batch, micro_batches, mini_batches, trained_tokens, trajectory_samples
from rti_exp.training.distributed import gather_from_ranks, max_over_ranks, sum_over_ranks, world_size
from rti_exp.training.fsdp import ShardedPolicy, gathered, idle_batch, sharded_state, whole_tensor
from rti_exp.training.gathering import (
    Gathered,
    Gatherer,
    Intervening,
    Rollouts,
    Teaching,
    has_signal,
    require_usable_roles,
    require_valid,
)
from rti_exp.training.metrics import IterationReport, Stopwatch, UpdateStats, iteration_metrics, mean, merged
from rti_exp.training.tasks import IterationTasks
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Group, Sample


class DivergedError(RuntimeError):
    """A loss or gradient is not finite; the weights are still those from before that optimizer step."""


class RTIModule(LightningModule):
    """Trains `model` by RL with rollout-time intervention.

    Optimization is manual. All forward passes, training's too, run in eval mode: dropout would make the policy
    that is trained another one than the policy that did the rollout.

    Each of the iteration's mini-batches takes one optimizer step on (sum of its token losses) / (trained tokens
    of the iteration) * (number of mini-batches): the scale of a step does not depend on `algorithm.updates`.
    Only samples with a signal count as trained; without any, weights and optimizer state stay bit-identical (with
    a KL term, beta > 0, every valid sample has one).

    Metrics go to Lightning's loggers every `log_every_n_steps` RL iterations and after the last, with the iteration as
    x-axis: it survives a resume, which Lightning's own batch count does not.

    Args:
        model: The policy; the engine generates with this very object.
        engine: Its weights' version is stamped by `sync` after each iteration.
        collector: The policy's; evaluation uses it too.
        interventions: None leaves all groups as they were sampled (plain GRPO).
        success_threshold: A trajectory succeeded iff its reward is at least this.
        teacher: Adds members to each group (LUFFY).
        teacher_engine: What the teacher's tokens are counted by.
        reference: What the algorithm is given the log-probs of, if it needs a reference (OPD's teacher); None is
            a frozen copy of the model as it comes.
        token_budget: Training is finished once so many tokens are spent.
        accepted_budget: Training goes on without interventions once so many corrections are accepted.
        limits: What share of rollouts and of attempts may fail.

    Attributes:
        iteration: RL iterations done.
        policy_version: Iterations that changed the weights.
        tokens_spent: Tokens generated and scored so far, by all ranks, roles and teachers included.
        accepted: Corrections accepted so far, by all ranks.
        last_groups: Groups of the last iteration, of all ranks, merged after the interventions.
        last_metrics: Its flat metrics (`rti_exp.training.metrics.iteration_metrics`).
        updating: True while weights and counters are out of step; a checkpoint would be no iteration's.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        engine: Engine,
        collector: Rollouts,
        interventions: Intervening | None,
        algorithm: Algorithm,
        settings: UpdateSettings,
        run: RunSettings,
        success_threshold: float = 1.0,
        teacher: Teaching | None = None,
        teacher_engine: Engine | None = None,
        reference: PreTrainedModel | None = None,
        token_budget: float = math.inf,
        accepted_budget: float = math.inf,
        limits: LimitSettings | None = None,
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
        self.teacher = teacher
        self.teacher_engine = teacher_engine
        self.token_budget = token_budget
        self.accepted_budget = accepted_budget
        self.limits = limits or LimitSettings()
        self.reference = (reference or _frozen_copy(model)) if algorithm.needs_reference else None
        self._policy_forward: TrainedPositions | ShardedPolicy = TrainedPositions(model)
        self._sharded: ShardedPolicy | None = None
        self._reference_forward = TrainedPositions(self.reference) if self.reference is not None else None
        self.iteration = 0
        self.policy_version = 0
        self.tokens_spent = 0
        self.accepted = 0
        self.updating = False
        self.last_groups: list[Group] = []
        self.last_metrics: dict[str, float | None] = {}

    def configure_model(self) -> None:
        """Under FSDP2: train a sharded copy of the engine's model. Lightning calls it once processes are up."""
        if self._sharded is not None or self.device_mesh is None:
            return
        self.model.to(self.device)  # pyright: ignore[reportArgumentType]  (a decorator hides its signature)
        self._sharded = ShardedPolicy(self.model, self.device_mesh["data_parallel"])
        self.model = self._sharded.model
        self._policy_forward = self._sharded

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of the weights: then `training_state` needs all of them."""
        return self._sharded is not None

    @property
    def finished(self) -> bool:
        """Whether the last iteration is done: the run's iterations are, or its budget is spent."""
        return self.iteration >= self.run.max_iterations or self.tokens_spent >= self.token_budget

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # On the CPU torch takes its step in one pass over memory only when told so: a third of the time.
        plain = self._sharded is None and all(parameter.device.type == "cpu" for parameter in trained)
        return torch.optim.AdamW(
            trained,
            lr=self.settings.learning_rate,
            betas=(self.settings.adam_beta1, self.settings.adam_beta2),
            weight_decay=self.settings.weight_decay,
            fused=True if plain else None,
        )

    def training_step(self, tasks: IterationTasks) -> None:
        """One RL iteration on this rank's tasks.

        Raises:
            DivergedError: a loss or gradient norm is not finite.
            EnvironmentDownError, RolesDownError: more failed than `limits` allows.
            EngineUnavailable: the policy's engine stayed down.
            RuntimeError: the tasks are another iteration's (only one of module and data was restored).
        """
        iteration, stopwatch = self.iteration + 1, Stopwatch()
        if tasks.iteration != iteration:
            raise RuntimeError(f"tasks of iteration {tasks.iteration} came where those of {iteration} were due")
        with stopwatch.time("iteration"):
            self.eval()
            gathered = self._gather(tasks, iteration, stopwatch)
            samples = self._samples(gathered)
            with stopwatch.time("update"):
                self.updating = True
                update = self._update(samples, iteration)
                if self._sharded is not None and update.steps:
                    self._sharded.fill()
                self.policy_version += update.steps > 0
                self.engine.sync(self.policy_version)
                self.iteration = iteration
                self.updating = False
        report = self._report(gathered, update, stopwatch)
        require_valid(report.groups, f"iteration {iteration}", self.limits)
        require_usable_roles(report.groups, f"iteration {iteration}", self.limits)
        self.tokens_spent += sum(report.tokens.values())
        self.last_groups = list(report.groups)
        self.last_metrics = iteration_metrics(report, update, success_threshold=self.success_threshold)
        self.accepted += int(self.last_metrics["funnel/accepted"] or 0)
        self._tell_lightning()

    def _tell_lightning(self) -> None:
        """The iteration's metrics for `trainer.callback_metrics`, `trainer.logged_metrics`, and the trainer's loggers.

        `log_dict` would say the same: an object for each name, each time, 10 ms for the fifty of an iteration.
        """
        logged = {name: float(value) for name, value in self.last_metrics.items() if value is not None}
        tensors = {name: torch.tensor(value) for name, value in {**logged, "step": float(self.iteration)}.items()}
        trainer: Any = self.trainer
        trainer.callback_metrics.update(tensors)
        trainer.logged_metrics.update(tensors)
        every = trainer.log_every_n_steps  # 0: never
        if every and (self.iteration % every == 0 or self.finished):
            for logger in trainer.loggers:
                logger.log_metrics(logged, step=self.iteration)
                logger.save()

    @torch.no_grad()
    def _gather(self, tasks: IterationTasks, iteration: int, stopwatch: Stopwatch) -> Gathered:
        gather = Gatherer(
            collector=self.collector,
            interventions=self.interventions if self.accepted < self.accepted_budget else None,
            teacher=self.teacher,
            engines=[self.engine] if self.teacher_engine is None else [self.engine, self.teacher_engine],
            algorithm=self.algorithm,
            group_size=self.run.group_size,
            refills=self.settings.dynamic_sampling,
            device=self.device,
            stopwatch=stopwatch,
        )
        return gather(tasks, iteration)

    def samples_of(self, group: Group, advantages_G: Sequence[float]) -> list[Sample | None]:
        """What is trained of each of `group.trajectories`; None where nothing is."""
        # Under dynamic sampling a group without signal is dropped, the KL term included.
        if self.settings.dynamic_sampling > 0 and not has_signal(advantages_G):
            return [None] * len(group.trajectories)
        # Without a KL term, skipping advantage 0 is exact: its loss and gradient are 0.
        keep_zero = self.algorithm.trains_without_advantage
        return trajectory_samples(group, advantages_G, self.settings.scope, keep_zero_advantage=keep_zero)

    def _samples(self, gathered: Gathered) -> list[Sample]:
        pairs = zip(gathered.groups, gathered.advantages, strict=True)
        return [one for group, values in pairs for one in self.samples_of(group, values) if one is not None]

    def _report(self, gathered: Gathered, update: UpdateStats, stopwatch: Stopwatch) -> IterationReport:
        """The iteration as all ranks saw it. A reference has scored each trained token once."""
        own = IterationReport(
            groups=gathered.groups,
            advantages=gathered.advantages,
            tokens=gathered.tokens,
            seconds=stopwatch.seconds,
            refills=gathered.refills,
        )
        report = merged(gather_from_ranks(own))
        if not self.algorithm.needs_reference:
            return report
        scored = report.tokens.get("scored", 0) + update.trained_tokens
        return dataclasses.replace(report, tokens={**report.tokens, "scored": scored})

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
            batches = micro_batches(
                part,
                max_tokens=self.settings.micro_batch_tokens,
                total_trained_tokens=total,
                packed=self._packs,
            )
            if self._sharded is not None:  # every pass gathers weights: all ranks have to make as many
                most = int(max_over_ranks(torch.tensor(len(batches), device=self.device)).item())
                batches = [*batches, *(idle_batch(total) for _ in range(most - len(batches)))]
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

    @property
    def _packs(self) -> bool:
        """Whether no forward pass over a batch computes its padding."""
        reference = self._reference_forward
        return self._policy_forward.packs and (reference is None or reference.packs)

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
        norm = whole_tensor(torch.nn.utils.clip_grad_norm_(parameters, self.settings.gradient_clip)).item()
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
        weights, moments = kept_weights(self.model), optimizer.state_dict()
        return {
            "iteration": self.iteration,
            "policy_version": self.policy_version,
            "tokens_spent": self.tokens_spent,
            "accepted": self.accepted,
            "model": gathered(weights) if self.sharded else weights,
            "optimizer": gathered(moments) if self.sharded else moments,
        }

    def restore_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`, in place; call it once the optimizer exists (`on_fit_start`)."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        weights, moments = state["model"], state["optimizer"]
        if self._sharded is not None:
            weights, moments = sharded_state(state, self.model, optimizer.param_groups[0]["params"])
        restore_weights(self.model, weights)
        # How a step is computed is this process's to say, not that of the one which kept the state.
        own = {name: optimizer.param_groups[0][name] for name in ("fused", "foreach")}
        groups = [{**group, **own} for group in moments["param_groups"]]
        optimizer.load_state_dict({**moments, "param_groups": groups})
        if self._sharded is not None:
            self._sharded.fill()
        self.iteration = state["iteration"]
        self.policy_version = state["policy_version"]
        self.tokens_spent = state["tokens_spent"]
        self.accepted = state["accepted"]
        self.engine.sync(self.policy_version)


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).requires_grad_(False).eval()


def _require_finite(value: float, quantity: str, iteration: int) -> None:
    if not math.isfinite(value):
        raise DivergedError(f"iteration {iteration}: the {quantity} is {value}; the weights were left as they were")
