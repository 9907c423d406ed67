"""A local checkout of Claw-Eval as an `Environment`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rti_exp.config.fields import Count, FinitePositive, Natural
from rti_exp.envs.claw_eval.episode import ClawEpisode
from rti_exp.envs.claw_eval.folders import read_folders, selected
from rti_exp.envs.claw_eval.grading import Grader
from rti_exp.envs.required_packages import require
from rti_exp.types import Task

INSTALL = "pip install 'rti-exp[claw]'"
NOW = "2026-03-02T09:00:00+00:00"
"""The first Monday of the month of the benchmark's fixtures."""


class ClawEval:
    """Tasks of a checkout whose tools are mock services; graded by the task's grader.

    Args:
        root: the checkout. Its services and graders are executed: use a checkout that you trust.
        selection: `[all]` that can run here, every fourth of them held out; `[hard20]` (`folders.selected`); or ids.
        now: the time of day that services and graders see, ISO 8601 with a zone; it stands still, so that a replay
            gets the same answers.
        judge: settings of the judge model (`rti_exp.config.remote_settings.RemoteSettings`); null: no judge; a
            grader that asks a judge is then an infrastructure failure.
        judge_model: the judge itself, in place of `judge`; for use from Python.
        judge_retries: further tries for an answer of the judge that cannot be read.
        max_turns: assistant turns an episode may take.
        seconds: how long a service's start and each call may take.
        grader_seconds: how long a grader may take, including its judge.

    Raises:
        SettingsError: the extra is not installed.
        ValueError: an invalid value, or `root` is not a checkout.
    """

    def __init__(
        self,
        *,
        root: str,
        selection: Sequence[str],
        now: str,
        judge: dict[str, Any] | None,
        judge_model: Any = None,
        judge_retries: Natural,
        max_turns: Count,
        seconds: FinitePositive,
        grader_seconds: FinitePositive,
    ) -> None:
        if not _has_zone(now):
            raise ValueError(f"env.now={now!r}: must be a time such as {NOW!r}")
        require(("fastapi", "uvicorn", "pydantic"), purpose="env=claw_eval", install=INSTALL)
        folder = Path(root).expanduser().resolve()
        self.max_turns = max_turns
        self._root = folder
        self._now = now
        self._seconds = seconds
        self._tasks = selected(read_folders(folder), selection)
        model = judge_model if judge is None else _judge_model(judge)
        self._grader = Grader(folder, model, now=now, retries=judge_retries, seconds=grader_seconds)

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "heldout"):
            raise ValueError(f'no split {split!r} of Claw-Eval: use "train" or "heldout"')
        return [task for task in self._tasks if task.split == split]

    def start(self, task: Task) -> ClawEpisode:
        return ClawEpisode(task, root=self._root, grader=self._grader, now=self._now, seconds=self._seconds)


def _has_zone(text: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _judge_model(node: dict[str, Any]) -> Any:
    from rti_exp.config.defaults import endpoint_settings
    from rti_exp.engines.remote import ChatModel

    return ChatModel(endpoint_settings(node, "env.judge"), key="env.judge")
