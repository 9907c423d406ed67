"""The jobs of a sweep: what each is, how far it has come, and what another study has done already.

This module imports no torch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rti_exp.config.paths import policy_folder
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.runs import RunLocked, RunUnwritable, adopt, done_elsewhere, read_status
from rti_exp.runs.bounded import visible
from rti_exp.sweep.configs import SweepConfigs
from rti_exp.sweep.overrides import key_of, study_name, swept_keys, value_at

MANY = 10
"""Checking more configs than this takes long enough to be announced."""


@dataclass(slots=True)
class Job:
    """One run of the sweep. `state`: new, continue or done before it starts; then running; then as it ended."""

    overrides: tuple[str, ...]
    config: Config
    directory: Path
    state: str
    iterations_done: int = 0
    arm: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    error: str | None = None

    @property
    def iterations(self) -> int:
        return self.config.run.max_iterations

    @property
    def seed(self) -> int:
        return self.config.run.seed

    @property
    def name(self) -> str:
        parts = [f"{key}={value}" for key, value in self.arm.items()]
        return " ".join([*parts, f"seed={self.seed}"])


def progress(directory: Path, config: Config) -> tuple[str, int]:
    """new, continue or done, and the iterations done so far."""
    status = read_status(directory)
    if config.top.fresh or status is None:
        return "new", 0
    done = int(status.get("iterations_done") or 0)
    if status["state"] == "done":
        return "done", done
    return ("continue" if done else "new"), done


def identity(job: Job) -> dict[str, Any]:
    return {
        "run_key": job.config.key,
        "study": job.directory.parent.name,
        "overrides": list(job.overrides),
        "seed": job.seed,
    }


def take_over(jobs: Sequence[Job]) -> None:
    """Of jobs that have not begun, those that are done in another study of the same runs root become done."""
    taken: list[str] = []
    for job in jobs:
        source = done_elsewhere(job.directory)
        if source is not None and _policy_is_newer(job.config.policy.path, source):
            continue
        study = job.directory.parent.name
        try:
            if source is None or not adopt(
                source, job.directory, study=study, config=job.config.plain, overrides=job.overrides
            ):
                continue
        except (RunLocked, RunUnwritable, OSError):
            continue  # it is run, or told to be unwritable, like any other
        job.state, job.iterations_done = progress(job.directory, job.config)
        taken.append(source.parent.name)
    if taken:
        studies = visible(", ".join(sorted(set(taken))))
        print(f"{len(taken)} done already in {studies}, taken from there (fresh=true runs them anew)", flush=True)


def _policy_is_newer(path: str, source: Path) -> bool:
    """Whether the weights at `path` may be others than those that the run in `source` began with: a run's key names a
    policy by its path, not by its bytes."""
    try:
        folder = policy_folder(path)
        began = datetime.fromisoformat(str((read_status(source) or {}).get("started"))).timestamp()
    except (SettingsError, ValueError, OverflowError):
        return False  # a hub's model, whose cache keeps revisions apart; a status without a usable time
    return any(file.stat().st_mtime > began for file in folder.iterdir() if file.is_file())


class Sweep:
    """The jobs of one sweep; jobs with equal configs are one job."""

    def __init__(self, jobs: Sequence[Job], *, study: str, n_jobs: int, flags: Sequence[str], keys: Sequence[str]):
        self.jobs = list(jobs)
        self.study = study
        self.n_jobs = n_jobs
        self.flags = tuple(flags)
        self.keys = [key for key in keys if key != "seed"]

    @classmethod
    def plan(
        cls,
        job_overrides: Sequence[Sequence[str]],
        configs: SweepConfigs,
        *,
        n_jobs: int,
        flags: Sequence[str] = (),
        keys: Sequence[str] = (),
    ) -> Sweep:
        """Checks every job's config and reads each job's progress.

        Args:
            keys: The swept keys, if these jobs are only a batch of the sweep; by default the keys that differ.

        Raises:
            SettingsError: names the job's overrides.
        """
        keys = [key for key in keys or swept_keys(job_overrides) if not key.startswith("hydra.")]
        default = study_name(keys)
        jobs: dict[Path, Job] = {}
        study = default
        if len(job_overrides) > MANY:
            print(f"checking {len(job_overrides)} configs ...", flush=True)
        for overrides in job_overrides:
            try:
                config = configs.checked(overrides)
            except SettingsError as error:
                raise SettingsError(f"{error} (job: {' '.join(overrides)}){_swept(str(error), overrides)}") from error
            study = config.top.study_or(default)
            directory = config.directory(study)
            if directory in jobs:
                continue
            texts = {key_of(override): override.partition("=")[2] for override in overrides}
            arm = {key: value_at(config.plain, key, texts.get(key, "")) for key in keys if key != "seed"}
            state, done = progress(directory, config)
            jobs[directory] = Job(
                overrides=(*overrides, *(() if config.top.study else (f"study={study}",))),
                config=config,
                directory=directory,
                state=state,
                iterations_done=done,
                arm=arm,
            )
        return cls(list(jobs.values()), study=study, n_jobs=n_jobs, flags=flags, keys=keys)

    @property
    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs if job.state != "done"]

    @property
    def study_dir(self) -> Path:
        return self.jobs[0].directory.parent


def _swept(error: str, overrides: Sequence[str]) -> str:
    """The correct command line if a list was given to a key that takes one value."""
    for key, _, value in (text.partition("=") for text in overrides):
        if value.startswith("[") and error.startswith(f"{key}=["):
            return f"; to sweep: -m {key}={value[1:-1]}"
    return ""
