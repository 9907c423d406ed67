"""Config -> objects. The only file that calls `hydra.utils.instantiate`; torch is imported by what is called.

Each part's class is its group's `_target_`. Ours take their settings object and the objects that they work
with; an environment takes its options as keywords.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate

from rti_exp.config.algorithm_settings import CORRECTED, LuffySettings, teacher_path
from rti_exp.config.check import Config, Part, check_files
from rti_exp.config.group_settings import CorrectorSettings, verifier_settings
from rti_exp.config.paths import policy_folder
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.experiment.policies import Judges, Player, collector, same_tokenizer, teacher_rollouts
from rti_exp.experiment.remote_roles import check_remote, usage_callbacks
from rti_exp.experiment.sampler_mismatch import mismatch_callbacks
from rti_exp.experiment.trainer import check_strategy, forgetting, spared_by_collections, trainer
from rti_exp.runs import Run
from rti_exp.types import Task

if TYPE_CHECKING:
    import torch
    from pytorch_lightning import Callback, Trainer

    from rti_exp.intervention.corrector import Corrector
    from rti_exp.intervention.pipeline import Interventions
    from rti_exp.rollout.collect import Collector
    from rti_exp.tracking.loggers import RunLogger
    from rti_exp.training.learner import RTIModule
    from rti_exp.training.tasks import TaskDataModule


def make(part: Part, **objects: Any) -> Any:
    """The part's object; `objects` are passed as they are."""
    return instantiate({"_target_": part.target, "_partial_": True, "_convert_": "all"})(**objects)


def environment(config: Config, *, isolated: bool = True) -> Environment:
    """Imports no torch with the embedded world. With `env.timeout` it is in a process of its own, if `isolated`.

    Raises:
        SettingsError: an option without sense.
        InfrastructureError: in a process of its own, it cannot be made.
    """
    options = _options(config.env)
    try:
        if config.env_timeout is None or not isolated:
            return make(config.env, **options)
        assert config.env.target is not None
        return IsolatedEnvironment(config.env.target, options, timeout=config.env_timeout)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_parts(config: Config, *, training: bool = True) -> None:
    """What can be known without torch: that the models are there, and that the environment can be made.

    Args:
        training: whether there have to be enough training tasks; a benchmark may hold out all it has.

    Raises:
        SettingsError: naming the key, and what would be right.
    """
    _check_algorithm(config)
    check_files(config)
    check_remote(config)
    check_strategy(config)
    tasks = _training_tasks(config)
    if training and config.run.tasks_per_iteration > tasks:
        raise SettingsError(
            f"tasks_per_iteration={config.run.tasks_per_iteration}: must be at most {tasks}, "
            "the number of training tasks"
        )


def _training_tasks(config: Config) -> int:
    try:
        world = environment(config)
        try:
            return len(world.tasks("train"))
        finally:
            if isinstance(world, IsolatedEnvironment):
                world.close()
    except SettingsError:
        raise
    except Exception as error:  # code of others
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise SettingsError(
            f"env._target_={config.env.target!r}: must be an environment that can be made and has tasks; it raised "
            f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from error


def _check_algorithm(config: Config) -> None:
    target, options = config.algorithm.target, config.algorithm.options
    corrects = config.corrector.target is not None
    if CORRECTED.get(target or "", corrects) is not corrects:
        wanted = "not none: accepted corrections are all that it learns from" if not corrects else "none"
        raise SettingsError(f"corrector: with {target} it must be {wanted}")
    if isinstance(options, LuffySettings) and options.n_prefix >= config.run.group_size:
        raise SettingsError(
            f"algorithm.n_prefix={options.n_prefix}: must be below group_size={config.run.group_size}, "
            "so that the policy has a member of its own"
        )


def _options(part: Part) -> dict[str, Any]:
    """The part's options as keywords."""
    if isinstance(part.options, dict):
        return part.options
    return {name: getattr(part.options, name) for name in part.options.__dataclass_fields__}


def player(config: Config, path: str, *, key: str = "policy.path", device: torch.device | None = None) -> Player:
    """The model that `path` names, in an engine of the kind `engine`; the policy's own with its adapters.

    Raises:
        SettingsError: it cannot be loaded, spoken to, or run by the engine.
    """
    from rti_exp.models.adapters import add_lora
    from rti_exp.models.load import load
    from rti_exp.models.recompute import recompute_layers
    from rti_exp.rollout.renderers import renderer_for

    given = f"{key}={path!r}"
    loaded = load(policy_folder(path, key), config.policy.dtype, given=given)
    renderer = renderer_for(loaded.tokenizer, config.policy.chat, given=given)
    if key == "policy.path" and config.policy.lora.rank:
        add_lora(loaded.model, config.policy.lora, seed=config.run.seed)
    if key == "policy.path" and config.policy.gradient_checkpointing:
        recompute_layers(loaded.model)
    if device is not None:
        loaded.model.to(device)  # pyright: ignore[reportArgumentType]  (a decorator hides its signature)
    try:
        engine = make(config.engine, model=loaded.model, **_options(config.engine))
    except ValueError as error:
        raise SettingsError(f"{given}: {error}") from error
    return Player(model=loaded.model, tokenizer=loaded.tokenizer, engine=engine, renderer=renderer)


def corrector(config: Config, policy: Player, device: torch.device) -> Corrector | None:
    """None for `corrector=none`."""
    part = config.corrector
    if part.target is None:
        return None
    prompt = config.prompts.corrector
    if not isinstance(part.options, CorrectorSettings):
        return make(part, policy=policy, prompt=prompt, **_options(part))
    settings = part.options
    if settings.path is None:
        return make(part, engine=policy.engine, renderer=policy.renderer, prompt=prompt, settings=settings)
    writer = player(config, settings.path, key="corrector.path", device=device)
    return make(
        part,
        engine=writer.engine,
        renderer=writer.renderer,
        policy_renderer=policy.renderer,
        same_tokenizer=same_tokenizer(policy, writer),
        prompt=prompt,
        settings=settings,
    )


def teacher(config: Config, policy: Player, device: torch.device) -> Player | None:
    """The model that the algorithm learns from; None if there is none.

    Raises:
        SettingsError: it has another tokenizer than the policy.
    """
    path = teacher_path(config.algorithm.options)
    if path is None:
        return None
    made = player(config, path, key="algorithm.teacher", device=device)
    if not same_tokenizer(policy, made):
        raise SettingsError(f"algorithm.teacher={path!r}: must have the policy's tokenizer")
    return made


def probe(config: Config, run: Run | None, policy: Player) -> Callback | None:
    """None for `probe=none`.

    Raises:
        SettingsError: the probe's cases are another environment's.
    """
    if config.probe.target is None:
        return None
    from rti_exp.training.probe import ProbeCallback

    source = make(config.probe, settings=config.probe.options)
    world = environment(config, isolated=False)
    return ProbeCallback(run=run, cases=source.cases(world, policy.renderer), every=config.probe.options.every)


def interventions(
    config: Config, world: Environment, policy: Player, rollouts: Collector, device: torch.device
) -> Interventions | None:
    """None without a corrector: then no group is looked at, and the method is GRPO."""
    from rti_exp.intervention.pipeline import Interventions

    writer = corrector(config, policy, device)
    if writer is None:
        return None
    judges = Judges(config, policy, lambda path, key: player(config, path, key=key, device=device))
    checks, role = verifier_settings(config.verifier.options)
    return Interventions(
        environment=world,
        renderer=policy.renderer,
        collector=rollouts,
        engine=policy.engine,
        validator=make(
            config.validator,
            **judges.voice("validator"),
            prompt=config.prompts.validator,
            settings=config.validator.options,
        ),
        corrector=writer,
        verifier=make(
            config.verifier, **judges.voice("verifier"), prompts=config.prompts.verifier, settings=checks, role=role
        ),
        gate=config.gate,
        reweight=config.reweight,
        settings=config.intervention,
        rollout=config.rollout,
        seed=config.run.seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All that a run is made of."""

    module: RTIModule
    data: TaskDataModule
    trainer: Trainer
    heldout: list[Task]

    def fit(self) -> None:
        """Train, from the newest valid checkpoint if there is one."""
        from rti_exp.training.distributed import leave

        try:
            with spared_by_collections():
                self.trainer.fit(self.module, datamodule=self.data)
        finally:
            leave()


def experiment(config: Config, run: Run | None, *, directory: Path) -> Experiment:
    """The experiment of a config. `run` is None on ranks that write nothing; `directory` is the run's.

    Raises:
        SettingsError: a value that only the environment's tasks or the model show to be wrong.
    """
    from rti_exp.training.callbacks import training_callbacks
    from rti_exp.training.learner import RTIModule
    from rti_exp.training.tasks import TaskDataModule

    world = environment(config)
    data = TaskDataModule(tasks=world.tasks("train"), run=config.run)
    heldout = list(world.tasks("heldout"))
    policy = player(config, config.policy.path)
    callbacks = training_callbacks(
        run=run,
        run_key=config.key,
        checkpoints=directory / "checkpoints",
        heldout=heldout,
        evaluation=config.evaluation,
        decode=policy.renderer.text,
        recorder_every=config.recorder.every,
        probe=probe(config, run, policy),
        config=config.plain,
    )
    rollouts = collector(config, world, policy)
    trained = trainer(config, callbacks)
    steps_in = interventions(config, world, policy, rollouts, trained.strategy.root_device)
    writer = None if steps_in is None else steps_in.corrector
    taught_by = teacher(config, policy, trained.strategy.root_device)
    judges = [] if steps_in is None else [steps_in.validator, steps_in.verifier]
    engines = [policy.engine, *(one.engine for one in (writer, taught_by, *judges) if one is not None)]
    trained.callbacks.append(forgetting(engines))  # pyright: ignore[reportAttributeAccessIssue]
    measuring = [*usage_callbacks(steps_in), *mismatch_callbacks(policy.engine)]
    trained.callbacks[:0] = measuring  # pyright: ignore[reportAttributeAccessIssue]
    module = RTIModule(
        model=policy.model,
        engine=policy.engine,
        collector=rollouts,
        interventions=steps_in,
        algorithm=make(config.algorithm, settings=config.algorithm.options),
        settings=config.algorithm.options,
        run=config.run,
        success_threshold=config.intervention.success_threshold,
        teacher=teacher_rollouts(config, rollouts, taught_by),
        teacher_engine=None if taught_by is None else taught_by.engine,
        reference=None if taught_by is None else taught_by.model.requires_grad_(False),
        token_budget=config.budget.tokens,
        accepted_budget=config.budget.accepted,
        limits=config.limits,
    )
    return Experiment(module=module, data=data, trainer=trained, heldout=heldout)


def run_logger(config: Config, run: Run) -> RunLogger | None:
    """None for `logger=none`."""
    return (
        None if config.logger.target is None else make(config.logger, config=config, run=run, **_options(config.logger))
    )
