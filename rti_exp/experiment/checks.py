"""Checks of a whole config that need no torch: models exist, the environment can be created, parts fit together."""

from __future__ import annotations

from rti_exp.config.algorithm_settings import CORRECTED, LuffySettings
from rti_exp.config.check import check_files
from rti_exp.config.job_settings import TrainerSettings
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.config.settings import RolloutSettings, SettingsError
from rti_exp.config.typed_config import Config, Part
from rti_exp.envs.base import Environment
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.experiment.parts import broken_environment, build_environment, environment_tasks, require_heldout
from rti_exp.experiment.remote_models import check_endpoints, endpoints


def check_parts(config: Config, *, training: bool = True) -> None:
    """
    Args:
        training: Whether the environment must have enough training tasks; a benchmark may hold out all of its tasks.

    Raises:
        SettingsError: names the key and says what would be right.
    """
    _check_algorithm(config.algorithm, config.corrector, config.run.group_size)
    if training:
        _check_sampling(config.rollout)
    check_files(config)
    check_endpoints(endpoints(config), config.reweight.scorer)
    _check_strategy(config.trainer, config.policy.lora)
    _check_tasks(config, training=training)


def _check_tasks(config: Config, *, training: bool) -> None:
    try:
        environment = build_environment(config.env, config.env_timeout)
    except SettingsError:
        raise
    except Exception as error:  # third-party code
        raise broken_environment(config.env, error) from error
    try:
        tasks = environment_tasks(config.env, environment, "train")
        heldout = environment_tasks(config.env, environment, "heldout")
        _check_environment(config.env, environment)
    finally:
        if isinstance(environment, IsolatedEnvironment):
            environment.close()
    if training and config.run.tasks_per_iteration > len(tasks):
        raise SettingsError(
            f"tasks_per_iteration={config.run.tasks_per_iteration}: must be at most {len(tasks)}, "
            "the number of training tasks"
        )
    require_heldout(config.env, heldout, config.evaluation.tasks)


def _check_environment(env: Part, environment: Environment) -> None:
    if not isinstance(environment, Environment):
        raise SettingsError(f"env._target_={env.target!r}: must have max_turns, tasks(split) and start(task)")
    turns = environment.max_turns
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise SettingsError(f"env._target_={env.target!r}: its max_turns is {turns!r}; it must be an integer >= 1")


def _check_algorithm(algorithm: Part, corrector: Part, group_size: int) -> None:
    corrects = corrector.target is not None
    if CORRECTED.get(algorithm.target or "", corrects) is not corrects:
        required = "none" if corrects else "another option than none: accepted corrections are all that it learns from"
        raise SettingsError(f"corrector: with {algorithm.target} it must be {required}")
    options = algorithm.options
    if isinstance(options, LuffySettings) and options.n_prefix >= group_size:
        raise SettingsError(
            f"algorithm.n_prefix={options.n_prefix}: must be below group_size={group_size}, "
            "so that each group has a member of the policy's own"
        )


def _check_sampling(rollout: RolloutSettings) -> None:
    if rollout.temperature == 0:
        raise SettingsError("rollout.temperature=0.0: must be > 0 in training; greedy rollouts of a task are all equal")
    if rollout.top_p < 1:
        raise SettingsError(
            f"rollout.top_p={rollout.top_p:g}: must be 1 in training; a correction could have tokens outside the "
            "nucleus, which the policy never samples"
        )


def _check_strategy(trainer: TrainerSettings, lora: LoraSettings) -> None:
    if trainer.strategy == "fsdp" and lora.rank:
        raise SettingsError(
            f"trainer.strategy=fsdp: must be ddp with policy.lora.rank={lora.rank}; adapters are too small to be worth "
            "sharding"
        )
