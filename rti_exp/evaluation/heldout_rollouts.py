"""Rollouts of held-out tasks by a local or a remote policy. The called code imports torch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import EvaluationSettings
from rti_exp.envs.base import Environment
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.types import Task, Trajectory

if TYPE_CHECKING:
    from rti_exp.engines.remote import ChatModel
    from rti_exp.rollout.collector import Collector

Pending = Sequence[tuple[Task, Sequence[int]]]
"""Tasks with the numbers of their missing samples."""
Record = Callable[[Sequence[tuple[Task, Trajectory]]], None]
"""Takes finished rollouts."""


def close_environment(environment: Environment) -> None:
    """End the separate process of an isolated environment."""
    if isinstance(environment, IsolatedEnvironment):
        environment.close()


def local_rollouts(
    collector: Collector,
    pending: Pending,
    record: Record,
    settings: EvaluationSettings,
    *,
    iteration: int,
    batch: int,
    arithmetic: Callable[[], AbstractContextManager[None]],
) -> None:
    """Roll out with a model in this process, `batch` tasks at a time.

    Args:
        iteration: The RL iteration of the weights.
        arithmetic: A context with the trainer's precision.
    """
    for start in range(0, len(pending), batch):
        tasks = [task for task, _ in pending[start : start + batch]]
        with arithmetic():
            groups = collector.collect(
                tasks, settings.samples, iteration, purpose="eval", temperature=settings.temperature
            )
        for (task, samples), group in zip(pending[start : start + batch], groups, strict=True):
            record([(task, group.sampled[sample]) for sample in samples])


def remote_rollouts(
    policy: RemotePolicySettings,
    new_environment: Callable[[], Environment],
    pending: Pending,
    record: Record,
    *,
    temperature: float,
    top_p: float,
    seed: int,
) -> None:
    """Roll out with a model behind an endpoint, as many episodes at once as it accepts requests, each in a thread."""
    from rti_exp.engines.remote import ChatModel
    from rti_exp.processes.background_loop import cancel_all
    from rti_exp.rollout.remote_rollouts import RemoteRollouts

    model = ChatModel(policy.remote, key="policy.remote")
    rollouts = RemoteRollouts(model=model, settings=policy, temperature=temperature, top_p=top_p, seed=seed)
    of_thread = threading.local()  # environments need not be thread-safe
    with ExitStack() as stack:
        stack.callback(_print_usage, model)

        def play(task: Task, sample: int) -> Trajectory:
            if not hasattr(of_thread, "environment"):
                of_thread.environment = new_environment()
                stack.callback(close_environment, of_thread.environment)
            return rollouts.run(of_thread.environment, task, sample)

        pool = ThreadPoolExecutor(max_workers=policy.remote.concurrency)
        jobs = {pool.submit(play, task, sample): task for task, samples in pending for sample in samples}
        try:
            for job in as_completed(jobs):
                record([(jobs[job], job.result())])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            cancel_all()
            raise
        finally:
            pool.shutdown()


def _print_usage(model: ChatModel) -> None:
    usage = model.usage
    lost = ", ".join(f"{count} {cause}" for cause, count in usage.lost_by_cause.items())
    print(
        f"{usage.answered} answers ({usage.from_cache} from the cache), {usage.tries} tries, "
        f"{usage.lost} requests lost{f' ({lost})' if lost else ''}, "
        f"{usage.prompt_tokens} prompt and {usage.completion_tokens} completion tokens",
        file=sys.stderr,
    )
