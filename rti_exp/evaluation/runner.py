"""Carrying out an evaluation: weights, folder, rollouts of a local or a remote policy, numbers.

torch is imported by what is called.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rti_exp.config.check import Config
from rti_exp.config.paths import policy_folder
from rti_exp.config.remote_settings import RemotePolicySettings, without_volatile
from rti_exp.config.settings import SettingsError
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.evaluation.results import (
    EvaluationFolder,
    Row,
    counts,
    estimates,
    missing,
    rollout_row,
    task_rows,
    too_few_tasks,
)
from rti_exp.experiment.build import build_collector
from rti_exp.experiment.parts import build_environment
from rti_exp.experiment.policies import PolicyLoader
from rti_exp.experiment.trainer import device_of, precision_context, prepare_process
from rti_exp.runs import read_status, run_key
from rti_exp.types import Task, Trajectory

SECONDS_BETWEEN_LINES = 5.0


class EvaluationFailed(RuntimeError):
    """Too much was lost for the numbers to mean anything."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is evaluated, where its rollouts go."""

    config: Config
    run: Path | None
    """The run directory, if a run is evaluated."""
    checkpoint: Path | None
    out: Path | None
    shard: tuple[int, int]


def evaluate(evaluation: Evaluation) -> tuple[dict[str, Any], Path]:
    """The numbers (as in result.json) of the rollouts that are there at the end, and their folder.

    Raises:
        SettingsError: the run or checkpoint cannot be evaluated, or the folder is not ours to write.
        EvaluationFailed: more rollouts than `limits.env_failures` allows are infrastructure failures.
    """
    from rti_exp.training.callbacks import interleaved_families

    config = evaluation.config
    prepare_process(config.run.seed, config.trainer.threads)
    weights, about = _weights(evaluation)
    folder = _folder(evaluation, about)
    with _closing(build_environment(config.env, config.env_timeout)) as world:
        heldout = interleaved_families(world.tasks("heldout"))
        if told := too_few_tasks(config.evaluation.tasks, len(heldout)):
            print(told, file=sys.stderr)
        tasks = heldout[: config.evaluation.tasks]
        number, of = evaluation.shard
        lacking = missing(tasks[number::of], config.evaluation.samples, folder.rows())
        if lacking:
            with folder.writing() as append:
                todo = [(task, lacking[task.id]) for task in tasks if task.id in lacking]
                roll_out = _remote if isinstance(config.policy, RemotePolicySettings) else _local
                roll_out(config, world, weights, todo, _noted(append, sum(map(len, lacking.values()))))
    row = _result(config, tasks, folder.rows(), iteration=0 if weights is None else int(weights["iteration"]))
    folder.finish(row)
    _require_valid(row, config)
    return row, folder.path


def _weights(evaluation: Evaluation) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The checkpoint to load, if one is evaluated, and what identifies the weights."""
    from rti_exp.training.checkpoints import CheckpointError, latest_valid_checkpoint, read_checkpoint

    run, config = evaluation.run, evaluation.config
    try:
        if run is not None:
            state = latest_valid_checkpoint(run / "checkpoints", _run_key(run))
            if state is None:
                raise SettingsError(f"run={str(run)!r}: must be a run with a valid checkpoint in checkpoints/")
        elif evaluation.checkpoint is not None:
            state = read_checkpoint(evaluation.checkpoint)
        else:
            return None, {"weights": _files(config)}
    except CheckpointError as error:
        given = f"run={str(run)!r}" if run is not None else f"checkpoint={str(evaluation.checkpoint)!r}"
        raise SettingsError(f"{given}: {error}") from error
    return state, {"weights": {"run_key": state["run_key"], "iteration": int(state["iteration"])}}


def _files(config: Config) -> Any:
    """What tells the policy's weights from others under the same name."""
    if isinstance(config.policy, RemotePolicySettings):
        return None
    found = sorted(policy_folder(config.policy.path).glob("*.safetensors"))
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in found]


def _folder(evaluation: Evaluation, weights: Mapping[str, Any]) -> EvaluationFolder:
    config = evaluation.config
    about = {
        "policy": without_volatile(config.policy, config.plain["policy"]),
        **weights,
        "env": {key: value for key, value in config.plain["env"].items() if key != "timeout"},
        "rollout": config.plain["rollout"],
        "temperature": config.evaluation.temperature,
        "seed": config.run.seed,
    }
    if config.trainer.precision != "32-true":
        about["precision"] = config.trainer.precision
    path = evaluation.out
    if path is None:
        named = config.policy.remote.model if isinstance(config.policy, RemotePolicySettings) else config.policy.path
        name = evaluation.run.name if evaluation.run is not None else re.sub(r"[^A-Za-z0-9_.-]+", "-", named)
        path = Path("evaluations") / f"{name.strip('-.')[-60:]}-{run_key(about)}"
    if config.top.fresh and evaluation.shard == (0, 1) and (path / "about.json").is_file():
        shutil.rmtree(path)
    return EvaluationFolder(path, about, evaluation.shard)


@contextmanager
def _closing(world: Any) -> Iterator[Any]:
    try:
        yield world
    finally:
        if isinstance(world, IsolatedEnvironment):
            world.close()


Note = Callable[[Sequence[tuple[Task, Trajectory]]], None]


def _noted(append: Callable[[Sequence[Row]], None], total: int) -> Note:
    """Writes rollouts down as they come, and tells how far they are."""
    done, told = 0, time.monotonic()

    def note(finished: Sequence[tuple[Task, Trajectory]]) -> None:
        nonlocal done, told
        append([rollout_row(task, trajectory) for task, trajectory in finished])
        done += len(finished)
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            print(f"{done} of {total} rollouts", file=sys.stderr, flush=True)

    return note


def _local(config: Config, world: Any, weights: Any, todo: Sequence[tuple[Task, Sequence[int]]], note: Note) -> None:
    """A model in this process, as many tasks together as the engine decodes at once."""
    from rti_exp.models.weights import restore_weights

    device = device_of(config.trainer.accelerator)
    policy = PolicyLoader(config.policy, config.engine, config.run.seed).policy(device)
    iteration = 0
    if weights is not None:
        try:
            restore_weights(policy.model, weights["model"])
        except (ValueError, RuntimeError) as error:
            raise SettingsError(
                f"checkpoint: its weights are not those of policy={config.policy.path!r}: {error}"
            ) from error
        iteration = int(weights["iteration"])
        policy.engine.sync(iteration)
    rollouts = build_collector(config, world, policy)
    samples = config.evaluation.samples
    together = max(1, getattr(config.engine.options, "max_batch", 256) // samples)
    for start in range(0, len(todo), together):
        part = todo[start : start + together]
        with precision_context(config.trainer.precision, policy.model, device):
            groups = rollouts.collect(
                [task for task, _ in part],
                samples,
                iteration,
                purpose="eval",
                temperature=config.evaluation.temperature,
            )
        for (task, wanted), group in zip(part, groups, strict=True):
            note([(task, group.sampled[number]) for number in wanted])


def _remote(config: Config, world: Any, weights: Any, todo: Sequence[tuple[Task, Sequence[int]]], note: Note) -> None:
    """A model behind an endpoint: as many episodes at once as it is sent requests, each in a thread."""
    from rti_exp.engines.remote import ChatModel
    from rti_exp.processes.background_loop import cancel_all
    from rti_exp.rollout.remote_rollouts import RemoteRollouts

    assert isinstance(config.policy, RemotePolicySettings)
    remote = config.policy.remote
    model = ChatModel(remote, key="policy.remote")
    rollouts = RemoteRollouts(
        model=model,
        settings=config.policy,
        temperature=config.evaluation.temperature,
        top_p=config.rollout.top_p,
        seed=config.run.seed,
    )
    own = threading.local()  # environments need not be made for several threads
    made: list[Any] = []

    def play(task: Task, number: int) -> Trajectory:
        if not hasattr(own, "world"):
            own.world = build_environment(config.env, config.env_timeout)
            made.append(own.world)
        return rollouts.run(own.world, task, number)

    pool = ThreadPoolExecutor(max_workers=remote.concurrency)
    jobs = {pool.submit(play, task, number): task for task, numbers in todo for number in numbers}
    try:
        for job in as_completed(jobs):
            note([(jobs[job], job.result())])
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        cancel_all()
        raise
    finally:
        pool.shutdown()
        for one in made:
            if isinstance(one, IsolatedEnvironment):
                one.close()
        _tell_usage(model)


def _tell_usage(model: Any) -> None:
    usage = model.usage
    lost = ", ".join(f"{count} {cause}" for cause, count in usage.lost_by_cause.items())
    print(
        f"{usage.answered} answers ({usage.from_cache} kept from before), {usage.tries} tries, "
        f"{usage.lost} requests lost{f' ({lost})' if lost else ''}, "
        f"{usage.prompt_tokens} prompt and {usage.completion_tokens} completion tokens",
        file=sys.stderr,
    )


def _result(
    config: Config, tasks: Sequence[Task], rows: Mapping[tuple[str, int], Row], *, iteration: int
) -> dict[str, Any]:
    samples = config.evaluation.samples
    scored = task_rows(tasks, samples, rows, config.intervention.success_threshold)
    powers = sorted({1, samples, *(2**power for power in range(samples.bit_length()) if 2**power < samples)})
    asked = [rows[task.id, number] for task in tasks for number in range(samples) if (task.id, number) in rows]
    return {
        "iteration": iteration,
        "rollouts": len(asked),
        "wanted": len(tasks) * samples,
        "infrastructure_failures": sum(not counts(row) for row in asked),
        "truncated": sum(row["status"] == "truncated" for row in asked),
        "estimates": estimates(scored, powers),
        "tasks": scored,
    }


def _require_valid(row: Mapping[str, Any], config: Config) -> None:
    failed, asked, limit = row["infrastructure_failures"], row["rollouts"], config.limits.env_failures
    if failed and (failed == asked or failed > limit * asked):
        raise EvaluationFailed(
            f"{failed} of {asked} rollouts are infrastructure failures, limits.env_failures is {limit:g}; their errors "
            "are in the rollouts; the same command does them again"
        )


def _run_key(directory: Path) -> str:
    """From its status: the folder may have been renamed or copied."""
    status = read_status(directory)
    if not status or "run_key" not in status:
        raise SettingsError(f"run={str(directory)!r}: must be a run directory; its status.json names no run")
    return str(status["run_key"])
