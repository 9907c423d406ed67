"""Config -> experiment: the one place that knows the whole config and hands each part its settings.

The called code imports torch.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rti_exp.config.algorithm_settings import LuffySettings, teacher_path
from rti_exp.config.settings import GateSettings, SettingsError
from rti_exp.config.typed_config import Config, Part
from rti_exp.envs.base import Environment
from rti_exp.experiment.parts import build_environment, build_part, environment_tasks, options_of, require_heldout
from rti_exp.experiment.policies import LoadedPolicy, PolicyLoader
from rti_exp.experiment.remote_models import remote_usage
from rti_exp.experiment.roles import RoleBuilder
from rti_exp.experiment.sampler_mismatch import sampler_mismatch
from rti_exp.experiment.trainer import build_trainer, engine_callback
from rti_exp.runs import Run
from rti_exp.types import Author, Task

if TYPE_CHECKING:
    from pytorch_lightning import Callback, Trainer

    from rti_exp.intervention.gate import Gate
    from rti_exp.intervention.pipeline import Interventions
    from rti_exp.rollout.collector import Collector
    from rti_exp.rollout.teacher_rollouts import TeacherRollouts
    from rti_exp.tracking.loggers import RunLogger
    from rti_exp.training.learner import RTIModule
    from rti_exp.training.tasks import TaskDataModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All objects of a run."""

    module: RTIModule
    data: TaskDataModule
    trainer: Trainer
    heldout: list[Task]

    def fit(self) -> None:
        """Trains, from the newest valid checkpoint if there is one."""
        from rti_exp.training.distributed import leave

        # Torch, transformers and Lightning hold a million objects; a collection that walks them takes a third of a
        # second in the middle of an iteration.
        gc.collect()
        gc.freeze()
        try:
            self.trainer.fit(self.module, datamodule=self.data)
        finally:
            gc.unfreeze()
            leave()


def build_experiment(config: Config, run: Run | None, *, directory: Path) -> Experiment:
    """The experiment of a config.

    Args:
        run: None on ranks that write nothing.
        directory: The run's.

    Raises:
        SettingsError: a value that only the environment's tasks or the model show to be wrong.
    """
    from rti_exp.training.callbacks import training_callbacks
    from rti_exp.training.checkpoint_callback import IterationCheckpoint
    from rti_exp.training.group_rollouts import GroupRollouts
    from rti_exp.training.learner import RTIModule
    from rti_exp.training.learner_settings import LearnerSettings
    from rti_exp.training.tasks import TaskDataModule

    world = build_environment(config.env, config.env_timeout)
    data = TaskDataModule(tasks=environment_tasks(config.env, world, "train"), run=config.run)
    heldout = environment_tasks(config.env, world, "heldout")
    require_heldout(config.env, heldout, config.evaluation.tasks)
    loader = PolicyLoader(config.policy, config.engine, config.run.seed)
    policy = loader.policy()
    callbacks = training_callbacks(
        run=run,
        decode=policy.renderer.text,
        recorder_every=config.recorder.every,
        heldout=heldout,
        evaluation=config.evaluation,
        checkpoint=IterationCheckpoint(
            run=run,
            run_key=config.key,
            checkpoints=directory / "checkpoints",
            every=config.top.checkpoint_every,
            config=config.plain,
        ),
        probe=_probe(config, run, policy),
    )
    trainer = build_trainer(config.trainer, callbacks)
    device = trainer.strategy.root_device
    collector = build_collector(config, world, policy)
    interventions = _interventions(config, collector, RoleBuilder(policy, loader, config.prompts, device))
    teacher = _teacher(config, loader, policy, device)
    played = None if interventions is None else interventions.roles
    roles = [] if played is None else [played.validator, played.corrector, played.verifier]
    engines = [policy.engine, *(part.engine for part in (*roles, teacher) if part is not None)]
    trainer.callbacks.append(engine_callback(engines))  # pyright: ignore[reportAttributeAccessIssue]
    module = RTIModule(
        model=policy.model,
        engine=policy.engine,
        rollouts=GroupRollouts(
            collector=collector,
            engine=policy.engine,
            group_size=config.run.group_size,
            teacher=_teacher_members(config, collector, teacher),
            teacher_engine=None if teacher is None else teacher.engine,
        ),
        interventions=interventions,
        algorithm=build_part(config.algorithm, settings=config.algorithm.options),
        settings=LearnerSettings(
            run=config.run,
            update=config.algorithm.options,
            temperature=config.rollout.temperature,
            success_threshold=config.intervention.success_threshold,
            budget=config.budget,
            limits=config.limits,
        ),
        reference=None if teacher is None else teacher.model.requires_grad_(False),
        metric_sources=[*remote_usage(played), *sampler_mismatch(policy.engine)],
    )
    return Experiment(module=module, data=data, trainer=trainer, heldout=heldout)


def build_collector(config: Config, world: Environment, policy: LoadedPolicy) -> Collector:
    """The collector that rolls out the policy, in training and in evaluation."""
    from rti_exp.rollout.collector import Collector

    return Collector(
        environment=world,
        engine=policy.engine,
        renderer=policy.renderer,
        settings=config.rollout,
        seed=config.run.seed,
    )


def build_logger(config: Config, run: Run) -> RunLogger | None:
    """None for `logger=none`."""
    if config.logger.target is None:
        return None
    return build_part(config.logger, config=config, run=run, **options_of(config.logger))


def _interventions(config: Config, collector: Collector, roles: RoleBuilder) -> Interventions | None:
    """None without a corrector: then every group stays as sampled, and the method is GRPO."""
    from rti_exp.intervention.pipeline import Interventions, Roles

    corrector = roles.corrector(config.corrector)
    if corrector is None:
        return None
    return Interventions(
        collector=collector,
        roles=Roles(
            validator=roles.validator(config.validator),
            corrector=corrector,
            verifier=roles.verifier(config.verifier),
            gate=_gate(config.gate),
        ),
        reweight=config.reweight,
        settings=config.intervention,
    )


def _gate(gate: GateSettings | Part) -> Gate:
    from rti_exp.intervention.gate import PerplexityGate

    return PerplexityGate(gate) if isinstance(gate, GateSettings) else build_part(gate, **options_of(gate))


def _teacher(config: Config, loader: PolicyLoader, policy: LoadedPolicy, device: object) -> LoadedPolicy | None:
    """The model that the algorithm learns from; None if there is none.

    Raises:
        SettingsError: its tokenizer is not the policy's.
    """
    path = teacher_path(config.algorithm.options)
    if path is None:
        return None
    teacher = loader.model(path, "algorithm.teacher", device)  # pyright: ignore[reportArgumentType]
    if not teacher.has_tokenizer_of(policy):
        raise SettingsError(f"algorithm.teacher={path!r}: must have the policy's tokenizer")
    return teacher


def _teacher_members(config: Config, policy: Collector, teacher: LoadedPolicy | None) -> TeacherRollouts | None:
    """None unless the algorithm's groups have members of a teacher."""
    from rti_exp.rollout.collector import Collector
    from rti_exp.rollout.teacher_rollouts import TeacherRollouts

    options = config.algorithm.options
    if teacher is None or not isinstance(options, LuffySettings):
        return None
    collector = Collector(
        environment=policy.environment,
        engine=teacher.engine,
        renderer=policy.renderer,
        settings=config.rollout,
        seed=config.run.seed,
        author=Author.TEACHER,
    )
    return TeacherRollouts(
        teacher=collector, policy=policy, members=options.n_prefix, prefix_fraction=options.prefix_fraction
    )


def _probe(config: Config, run: Run | None, policy: LoadedPolicy) -> Callback | None:
    """None for `probe=none`.

    Raises:
        SettingsError: the probe's cases belong to another environment.
    """
    if config.probe.target is None:
        return None
    from rti_exp.training.probe import ProbeCallback

    source = build_part(config.probe, settings=config.probe.options)
    world = build_environment(config.env, config.env_timeout, isolated=False)
    return ProbeCallback(run=run, cases=source.cases(world, policy.renderer), every=config.probe.options.every)
