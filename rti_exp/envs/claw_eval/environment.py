"""A local checkout of Claw-Eval as an `Environment`."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rti_exp.envs.claw_eval.episode import ClawEpisode
from rti_exp.envs.claw_eval.folders import read_folders, selected
from rti_exp.envs.claw_eval.grading import Grader
from rti_exp.envs.required_packages import require
from rti_exp.types import Task

INSTALL = "pip install 'rti-exp[claw]'"
NOW = "2026-03-02T09:00:00+00:00"
"""The first Monday of the month in which the benchmark's fixtures play."""


class ClawEval:
    """Tasks of a checkout whose tools are mock services; graded by the task's own grader.

    Args:
        root: the checkout. Its services and graders are programs, which are run: use one that you trust.
        selection: `[all]` that can run here, every fourth of them held out; `[hard20]` (`folders.selected`); or ids.
        now: the time of day that services and graders see, ISO 8601 with a zone; it stands still, so that a replay
            gets the same answers.
        judge: settings of the judge model (`rti_exp.config.remote_settings.RemoteSettings`); null: there is none, and a
            grader that asks one is an infrastructure failure.
        judge_model: the judge itself, in place of `judge`; for use from Python.
        judge_retries: further tries for an answer of the judge that cannot be read.
        max_turns: assistant turns an episode may take.
        seconds: how long a service's start and each call may take.
        grader_seconds: how long a grader may take, its judge included.

    Raises:
        SettingsError: the extra is not installed.
        ValueError: an invalid value, or `root` is not a checkout.
    """

    def __init__(
        self,
        *,
        root: str = "claw-eval",
        selection: Sequence[str] = ("all",),
        now: str = NOW,
        judge: dict[str, Any] | None = None,
        judge_model: Any = None,
        judge_retries: int = 2,
        max_turns: int = 30,
        seconds: float = 60.0,
        grader_seconds: float = 600.0,
    ) -> None:
        for name, value, least in (("max_turns", max_turns, 1), ("judge_retries", judge_retries, 0)):
            if value < least:
                raise ValueError(f"env.{name}={value}: must be an integer >= {least}")
        for name, value in (("seconds", seconds), ("grader_seconds", grader_seconds)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"env.{name}={value}: must be a finite number > 0")
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
    from rti_exp.config.conversion import typed
    from rti_exp.config.remote_settings import RemoteSettings
    from rti_exp.engines.remote import ChatModel

    return ChatModel(typed(RemoteSettings, node, "env.judge"), key="env.judge")
