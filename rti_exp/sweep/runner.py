"""A sweep: which jobs there are, what state each is in, and running those that are not done.

This module imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.config.settings import SettingsError
from rti_exp.processes.signals import signals_as_interrupt
from rti_exp.runs import RunUnwritable, death_record, read_status, settle
from rti_exp.sweep.configs import SweepConfigs
from rti_exp.sweep.display import Display
from rti_exp.sweep.jobs import Job, identity, progress, take_over
from rti_exp.sweep.overrides import key_of, study_name, swept_keys, value_at

CHILD = (sys.executable, "-m", "rti_exp.train")
SWEEP_PID = "RTI_EXP_SWEEP_PID"
"""Tells a child which process to end with."""
POLL_SECONDS = 0.25
MANY = 10
"""Checking more configs than these takes long enough to be told."""
GRACE_SECONDS = 20.0
"""How long children may take to end after an interrupt before they are killed."""


class Sweep:
    """The jobs of one sweep, equal configs taken once."""

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
        """Check every job's config, and look how far each has come.

        `keys` are those that the sweep varies, of which these jobs may be a batch; without any, those that differ.

        Raises:
            SettingsError: naming the job's overrides.
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

    def run(self) -> int:
        """Run the jobs that are not done; the exit code: 0 all done, 1 some failed.

        Raises:
            RunUnwritable: a run's folder cannot be created or written.
            KeyboardInterrupt: the children have been ended.
        """
        take_over([job for job in self.unfinished if job.state == "new" and not job.config.top.fresh])
        display = Display(self)
        display.announce()
        waiting = self.unfinished
        for job in waiting:
            _require_writable(job.directory)
        with display, signals_as_interrupt():
            try:
                self._run(waiting, display)
            except KeyboardInterrupt:
                self._interrupt()
                display.interrupted()
                raise
        display.summary()
        return int(bool(self.unfinished))

    def _run(self, waiting: list[Job], display: Display) -> None:
        running: list[Job] = []
        while waiting or running:
            while waiting and len(running) < self.n_jobs:
                job = waiting.pop(0)
                self._start(job)
                running.append(job)
            for job in list(running):
                self._look(job)
                if job.state != "running":
                    running.remove(job)
                    display.ended(job)
            display.update()
            if running:
                time.sleep(POLL_SECONDS)

    def _start(self, job: Job) -> None:
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.n_jobs))
        environment = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
        environment[SWEEP_PID] = str(os.getpid())
        with open(job.directory / "job.log", "ab") as log:
            job.process = subprocess.Popen(
                [*CHILD, *self.flags, *job.overrides, "hydra.mode=RUN"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only, which ends the children
            )
        job.state = "running"
        job.started = time.monotonic()

    def _look(self, job: Job) -> None:
        """Bring a running job up to date; settle it if its process has ended."""
        assert job.process is not None
        code = job.process.poll()
        status = read_status(job.directory) or {}
        own = status.get("pid") == job.process.pid
        if own or code is not None:
            job.iterations_done = int(status.get("iterations_done") or 0)
        if code is None:
            return
        if code != 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, signal.SIGKILL)  # ranks and services that a dead child left behind
        job.state, job.error = _ended(job, code, status, own=own)

    def _interrupt(self) -> None:
        """End the children: a signal, some patience, then a kill."""
        running = [job for job in self.jobs if job.state == "running" and job.process is not None]
        for job in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.process.pid, signal.SIGTERM)  # pyright: ignore[reportOptionalMemberAccess]
        deadline = time.monotonic() + GRACE_SECONDS
        for job in running:
            assert job.process is not None
            try:
                job.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
            settle(job.directory, state="interrupted", error=None, identity=identity(job))
            job.state = "interrupted"


def _swept(error: str, overrides: Sequence[str]) -> str:
    """What to type where a list was given to a key that takes one value."""
    for key, _, value in (text.partition("=") for text in overrides):
        if value.startswith("[") and error.startswith(f"{key}=["):
            return f"; to sweep: -m {key}={value[1:-1]}"
    return ""


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "job.log", "ab"):
            pass
    except OSError as error:
        raise RunUnwritable(f"{directory}: cannot be created or written ({error.strerror})") from error


def _ended(job: Job, code: int, status: Mapping[str, Any], *, own: bool) -> tuple[str, str | None]:
    """The state a job ended in, and its error in a line; writes them where the child could not."""
    if code == 0 and status.get("state") == "done":
        return "done", None
    if own and status.get("state") in ("failed", "interrupted"):
        error = status.get("error")
        return status["state"], f"{error['type']}: {error['message']}" if error else None
    record = death_record(*_death(code), log=job.directory / "job.log")
    settle(job.directory, state="failed", error=record, identity=identity(job))
    told = [line for line in record["traceback"].splitlines() if line.strip()]
    last = f"; it last said: {told[-1].strip()[:300]}" if told and code > 0 else ""
    return "failed", f"{record['type']}: {record['message']}{last}"


def _death(code: int) -> tuple[str, str]:
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (kill -9, or the machine ran out of memory)" if name == "SIGKILL" else ""
        return "Killed", f"the process was ended by {name}{hint}"
    if code == 0:
        return "Vanished", "the process ended with exit code 0 before the run was done"
    return "Exited", f"the process ended with exit code {code}"
