"""Evaluation: load the weights, roll out the missing samples, write the numbers. The called code imports torch."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rti_exp.config.fields import identity_of
from rti_exp.config.paths import policy_folder
from rti_exp.config.policy_settings import PolicySettings
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.envs.base import Environment
from rti_exp.evaluation.heldout_rollouts import Pending, Record, close_environment, local_rollouts, remote_rollouts
from rti_exp.evaluation.pass_rates import Row, missing_samples, result_row, too_few_tasks
from rti_exp.evaluation.request import EvaluationRequest
from rti_exp.evaluation.rollout_files import EvaluationFolder, rollout_row
from rti_exp.experiment.parts import build_environment, environment_tasks, require_heldout
from rti_exp.experiment.policies import LoadedPolicy, PolicyLoader
from rti_exp.experiment.trainer import device_of, precision_context, prepare_process
from rti_exp.runs import read_status, run_key
from rti_exp.types import Task, Trajectory

SECONDS_BETWEEN_LINES = 5.0


class EvaluationFailed(RuntimeError):
    """Too many rollouts are infrastructure failures for the numbers to mean anything."""


def evaluate(request: EvaluationRequest) -> tuple[dict[str, Any], Path]:
    """Roll out the samples that are missing in the folder.

    Returns:
        The content of result.json, over all rollouts in the folder, and the folder.

    Raises:
        SettingsError: the run or checkpoint cannot be evaluated, or the folder cannot be written.
        EvaluationFailed: more rollouts than `limits.env_failures` allows are infrastructure failures.
    """
    from rti_exp.training.callbacks import interleaved_families

    config, settings = request.config, request.config.evaluation
    prepare_process(config.run.seed, config.trainer.threads)
    checkpoint = _checkpoint(request)
    about = _identity(config, checkpoint)
    folder = EvaluationFolder(_path(request, about), about, request.shard)
    with ExitStack() as stack:
        environment = build_environment(config.env, config.env_timeout)
        stack.callback(close_environment, environment)
        heldout = interleaved_families(environment_tasks(config.env, environment, "heldout"))
        require_heldout(config.env, heldout, settings.tasks)
        if warning := too_few_tasks(settings.tasks, len(heldout)):
            print(warning, file=sys.stderr)
        tasks = heldout[: settings.tasks]
        number, shards = request.shard
        missing = missing_samples(tasks[number::shards], settings.samples, folder.rows())
        if missing:
            append = stack.enter_context(folder.writing())
            pending = [(task, missing[task.id]) for task in tasks if task.id in missing]
            _roll_out(config, checkpoint, environment, pending, _record(append, sum(map(len, missing.values()))))
    threshold = config.intervention.success_threshold
    iteration = 0 if checkpoint is None else int(checkpoint["iteration"])
    result = result_row(tasks, settings.samples, folder.rows(), threshold=threshold, iteration=iteration)
    folder.finish(result)
    _require_valid(result, config.limits.env_failures)
    return result, folder.path


def _checkpoint(request: EvaluationRequest) -> dict[str, Any] | None:
    """The checkpoint to evaluate; None for the policy's weights as they are."""
    from rti_exp.training.checkpoints import CheckpointError, latest_valid_checkpoint, read_checkpoint

    run = request.run
    try:
        if run is not None:
            state = latest_valid_checkpoint(run / "checkpoints", _run_key(run))
            if state is None:
                raise SettingsError(f"run={str(run)!r}: must be a run with a valid checkpoint in checkpoints/")
            return state
        return None if request.checkpoint is None else read_checkpoint(request.checkpoint)
    except CheckpointError as error:
        source = f"run={str(run)!r}" if run is not None else f"checkpoint={str(request.checkpoint)!r}"
        raise SettingsError(f"{source}: {error}") from error


def _run_key(directory: Path) -> str:
    """The key in the run's status: the directory may have been renamed or copied."""
    status = read_status(directory)
    if not status or "run_key" not in status:
        raise SettingsError(f"run={str(directory)!r}: must be a run directory; its status.json has no run_key")
    return str(status["run_key"])


def _identity(config: Config, checkpoint: Mapping[str, Any] | None) -> dict[str, Any]:
    """The content of about.json: everything that changes the rollouts."""
    policy, plain = config.policy, config.plain["policy"]
    about = {
        "policy": identity_of(policy, plain)
        if isinstance(policy, RemotePolicySettings)
        else {**plain, "chat": identity_of(policy.chat, plain["chat"])},
        "weights": _weights_identity(config.policy, checkpoint),
        "env": {key: value for key, value in config.plain["env"].items() if key != "timeout"},
        "rollout": config.plain["rollout"],
        "temperature": config.evaluation.temperature,
        "seed": config.run.seed,
    }
    if config.trainer.precision != "32-true":
        about["precision"] = config.trainer.precision
    return about


def _weights_identity(policy: PolicySettings | RemotePolicySettings, checkpoint: Mapping[str, Any] | None) -> Any:
    if checkpoint is not None:
        return {"run_key": checkpoint["run_key"], "iteration": int(checkpoint["iteration"])}
    if isinstance(policy, RemotePolicySettings):
        return None
    files = sorted(policy_folder(policy.path).glob("*.safetensors"))
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _path(request: EvaluationRequest, about: Mapping[str, Any]) -> Path:
    """The folder of the evaluation. `fresh=true` removes the former one."""
    policy, path = request.config.policy, request.out
    if path is None:
        model = policy.remote.model if isinstance(policy, RemotePolicySettings) else policy.path
        name = request.run.name if request.run is not None else re.sub(r"[^A-Za-z0-9_.-]+", "-", model)
        path = Path("evaluations") / f"{name.strip('-.')[-60:]}-{run_key(about)}"
    if request.config.top.fresh and request.shard == (0, 1) and (path / "about.json").is_file():
        shutil.rmtree(path)
    return path


def _record(append: Callable[[Sequence[Row]], None], total: int) -> Record:
    """Appends finished rollouts to the file, and prints a progress line every few seconds."""
    finished, last_line = 0, time.monotonic()

    def record(rollouts: Sequence[tuple[Task, Trajectory]]) -> None:
        nonlocal finished, last_line
        append([rollout_row(task, trajectory) for task, trajectory in rollouts])
        finished += len(rollouts)
        if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            print(f"{finished} of {total} rollouts", file=sys.stderr, flush=True)

    return record


def _roll_out(
    config: Config,
    checkpoint: Mapping[str, Any] | None,
    environment: Environment,
    pending: Pending,
    record: Record,
) -> None:
    """Hand the remote or local rollouts the settings that each needs."""
    settings, seed = config.evaluation, config.run.seed
    if isinstance(config.policy, RemotePolicySettings):
        new_environment = partial(build_environment, config.env, config.env_timeout)
        sampling = {"temperature": settings.temperature, "top_p": config.rollout.top_p}
        remote_rollouts(config.policy, new_environment, pending, record, seed=seed, **sampling)
        return
    from rti_exp.rollout.collector import Collector

    device = device_of(config.trainer.accelerator)
    policy = PolicyLoader(config.policy, config.engine, seed).policy(device)
    if checkpoint is not None:
        _restore(policy, checkpoint, config.policy.path)
    collector = Collector(
        environment=environment, engine=policy.engine, renderer=policy.renderer, settings=config.rollout, seed=seed
    )
    iteration = 0 if checkpoint is None else int(checkpoint["iteration"])
    batch = max(1, getattr(config.engine.options, "max_batch", 256) // settings.samples)
    arithmetic = partial(precision_context, config.trainer.precision, policy.model, device)
    local_rollouts(collector, pending, record, settings, iteration=iteration, batch=batch, arithmetic=arithmetic)


def _restore(policy: LoadedPolicy, checkpoint: Mapping[str, Any], path: str) -> None:
    from rti_exp.models.weights import restore_weights

    try:
        restore_weights(policy.model, checkpoint["model"])
    except (ValueError, RuntimeError) as error:
        raise SettingsError(f"checkpoint: its weights do not fit policy={path!r}: {error}") from error
    policy.engine.sync(int(checkpoint["iteration"]))


def _require_valid(result: Row, limit: float) -> None:
    failed, rollouts = result["infrastructure_failures"], result["rollouts"]
    if failed and (failed == rollouts or failed > limit * rollouts):
        raise EvaluationFailed(
            f"{failed} of {rollouts} rollouts are infrastructure failures, limits.env_failures is {limit:g}; the "
            "rollouts file has their errors; the same command repeats them"
        )
