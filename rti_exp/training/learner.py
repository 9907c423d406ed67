"""The Lightning module: one `training_step` is one RL iteration.

rollouts -> interventions -> advantages -> samples -> update -> sync
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pytorch_lightning import LightningModule
from transformers import PreTrainedModel

from rti_exp.engines.base import Engine
from rti_exp.intervention.pipeline import Intervened, Interventions
from rti_exp.objective.algorithm import Algorithm
from rti_exp.training.budget import Budget
from rti_exp.training.distributed import gather_from_ranks, interleave, rank, world_size
from rti_exp.training.failure_limits import require_healthy
from rti_exp.training.group_rollouts import GroupRollouts, RolledOut, task_rounds
from rti_exp.training.iteration import CollectedGroups, Iteration, Stopwatch, UpdateStats
from rti_exp.training.learner_settings import LearnerSettings
from rti_exp.training.metrics import MetricSource, iteration_metrics, log_to_lightning, over_ranks
from rti_exp.training.policy_update import PolicyUpdate
from rti_exp.training.samples import iteration_samples
from rti_exp.training.tasks import IterationTasks
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.training.trained_policy import FSDPPolicy, TrainedPolicy, WholePolicy
from rti_exp.types import Group, Sample


class RTIModule(LightningModule):
    """Trains `model` by RL with rollout-time intervention. Optimization is manual.

    Args:
        model: The policy; the engine generates with this very object.
        engine: The policy's; `sync` stamps its weights' version after each iteration.
        rollouts: Rolls out the groups of an iteration.
        interventions: None leaves all groups as they were sampled (plain GRPO).
        reference: The model whose log-probs the algorithm's loss takes, if it takes any (OPD's teacher). None is a
            frozen copy of the policy as loaded.
        metric_sources: Add metrics of engines to each iteration's.

    Attributes:
        iteration: RL iterations done.
        policy_version: Iterations that changed the weights.
        last_iteration: The last iteration, over all ranks; None before the first.
        last_metrics: Its flat metrics (`rti_exp.training.metrics.iteration_metrics`).
        updating: True while weights and counters disagree; a checkpoint taken then would belong to no iteration.
    """

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        engine: Engine,
        rollouts: GroupRollouts,
        interventions: Interventions | None,
        algorithm: Algorithm,
        settings: LearnerSettings,
        reference: PreTrainedModel | None = None,
        metric_sources: Sequence[MetricSource] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.engine = engine
        self.rollouts = rollouts
        self.interventions = interventions
        self.algorithm = algorithm
        self.settings = settings
        self.reference = (reference or _frozen_copy(model)) if algorithm.needs_reference else None
        self.metric_sources = metric_sources
        self.budget = Budget(settings.budget)
        self.policy: TrainedPolicy = WholePolicy(model, settings.temperature)
        self.update = PolicyUpdate(
            algorithm=algorithm,
            settings=settings.update,
            reference=TrainedPositions(self.reference, settings.temperature) if self.reference is not None else None,
            seed=settings.run.seed,
        )
        self.iteration = 0
        self.policy_version = 0
        self.updating = False
        self.last_iteration: Iteration | None = None
        self.last_metrics: Mapping[str, float | None] = {}

    def training_step(self, tasks: IterationTasks) -> None:
        """One RL iteration on this rank's tasks.

        Raises:
            EnvironmentDownError, RolesDownError: more failed than `limits` allows; nothing was updated.
            DivergedError: a loss or gradient norm is not finite.
            EngineUnavailable: the policy's engine stayed down.
            RuntimeError: the tasks are another iteration's (only one of module and data was restored).
        """
        iteration, collected, stopwatch = self._begin(tasks), CollectedGroups(), Stopwatch()
        refill_rounds = self.settings.update.dynamic_sampling
        with stopwatch.time("iteration"):
            for round_tasks in task_rounds(tasks, collected, refill_rounds, rank=rank(), world_size=world_size()):
                rolled_out = self._roll_out(round_tasks, iteration)
                intervened = self._intervene(rolled_out.groups, iteration)
                groups = interleave(gather_from_ranks(intervened.groups))
                advantages = [self.algorithm.advantages(group) for group in groups]
                collected.add(groups, advantages, rolled_out, intervened)
            require_healthy(collected.groups, f"iteration {iteration}", self.settings.limits)
            samples = iteration_samples(collected.groups, collected.advantages, self.algorithm, self.settings.update)
            with stopwatch.time("update"):
                self.updating = True
                update = self.update(
                    self, self.policy, _flat(samples), _flat(samples[rank() :: world_size()]), iteration
                )
                if update.steps:
                    self.policy.publish()
                    self.policy_version += 1
                self.engine.sync(self.policy_version)
                self.iteration = iteration
                self.updating = False
        self._finish(collected, samples, update, stopwatch)

    @property
    def finished(self) -> bool:
        """Whether training is over: all iterations are done, or the token budget is spent."""
        return self.iteration >= self.settings.run.max_iterations or self.budget.exhausted

    def _begin(self, tasks: IterationTasks) -> int:
        iteration = self.iteration + 1
        if tasks.iteration != iteration:
            raise RuntimeError(f"got the tasks of iteration {tasks.iteration} instead of iteration {iteration}")
        self.eval()
        for source in self.metric_sources:
            source.begin()
        return iteration

    @torch.no_grad()
    def _roll_out(self, tasks: Sequence[Any], iteration: int) -> RolledOut:
        return self.rollouts(tasks, iteration)

    @torch.no_grad()
    def _intervene(self, groups: list[Group], iteration: int) -> Intervened:
        if self.interventions is None or not self.budget.allows_interventions:
            return Intervened(groups=groups)
        return self.interventions(groups, iteration)

    def _finish(
        self, collected: CollectedGroups, samples: list[list[Sample | None]], update: UpdateStats, stopwatch: Stopwatch
    ) -> None:
        stopwatch.add(collected.seconds)
        tokens, seconds = over_ranks(collected.tokens, stopwatch.seconds)
        if self.reference is not None:  # it scored each trained token once
            tokens["scored"] = tokens.get("scored", 0) + update.trained_tokens
        self.last_iteration = Iteration(
            number=self.iteration,
            groups=tuple(collected.groups),
            advantages=tuple(collected.advantages),
            samples=tuple(samples),
            update=update,
            tokens=tokens,
            seconds=seconds,
            refills=collected.refills,
        )
        self.budget.charge(self.last_iteration)
        self.last_metrics = iteration_metrics(
            self.last_iteration, success_threshold=self.settings.success_threshold, sources=self.metric_sources
        )
        log_to_lightning(self.trainer, self.last_metrics, self.iteration, finished=self.finished)

    def configure_model(self) -> None:
        """Under FSDP2, trains a sharded copy of the engine's model. Lightning calls this once processes are up."""
        if self.policy.sharded or self.device_mesh is None:
            return
        self.model.to(self.device)  # pyright: ignore[reportArgumentType]  (a decorator hides its signature)
        self.policy = FSDPPolicy(self.model, self.device_mesh["data_parallel"], self.settings.temperature)
        self.model = self.policy.model

    def configure_optimizers(self) -> torch.optim.Optimizer:
        settings = self.settings.update
        return torch.optim.AdamW(
            [weight for weight in self.model.parameters() if weight.requires_grad],
            lr=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def training_state(self) -> dict[str, Any]:
        """The checkpoint of a finished iteration: tensors and plain types only. A reference is rebuilt, not stored."""
        return {
            "iteration": self.iteration,
            "policy_version": self.policy_version,
            "tokens_spent": self.budget.tokens_spent,
            "accepted": self.budget.accepted,
            **self.policy.state(self._optimizer()),
        }

    def restore_training_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `training_state`, in place; call it once the optimizer exists (`on_fit_start`)."""
        self.policy.restore(state, self._optimizer())
        self.iteration = state["iteration"]
        self.policy_version = state["policy_version"]
        self.budget.tokens_spent = state["tokens_spent"]
        self.budget.accepted = state["accepted"]
        self.engine.sync(self.policy_version)

    def _optimizer(self) -> torch.optim.Optimizer:
        return self.optimizers(use_pl_optimizer=False)  # pyright: ignore[reportReturnType]


def _flat(samples: Sequence[Sequence[Sample | None]]) -> list[Sample]:
    return [sample for group in samples for sample in group if sample is not None]


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).requires_grad_(False).eval()
