"""Running the unfinished jobs of a sweep in child processes.

This module imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rti_exp.processes.cpus import usable_cpus
from rti_exp.processes.signals import signals_as_interrupt
from rti_exp.runs import RunUnwritable, death_record, read_status, settle
from rti_exp.sweep.display import Display
from rti_exp.sweep.jobs import Job, Sweep, identity, take_over
from rti_exp.sweep.ranks import death, reported

CHILD = (sys.executable, "-m", "rti_exp.train")
SWEEP_PID = "RTI_EXP_SWEEP_PID"
"""The environment variable that gives a child the pid of the process to end with."""
POLL_SECONDS = 0.25
GRACE_SECONDS = 20.0
"""Seconds that children have to end after an interrupt before they are killed."""


class SweepRunner:
    """Runs the jobs of a sweep, each in a separate process, several at once."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep

    def run(self) -> int:
        """Runs the unfinished jobs; the exit code: 0 all done, 1 some failed.

        Raises:
            RunUnwritable: a run's folder cannot be created or written.
            KeyboardInterrupt: the children have been ended.
        """
        sweep = self.sweep
        take_over([job for job in sweep.unfinished if job.state == "new" and not job.config.top.fresh])
        display = Display(sweep)
        display.announce()
        waiting = sweep.unfinished
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
        return int(bool(sweep.unfinished))

    def _run(self, waiting: list[Job], display: Display) -> None:
        running: list[Job] = []
        while waiting or running:
            while waiting and len(running) < self.sweep.n_jobs:
                job = waiting.pop(0)
                self._start(job)
                running.append(job)
            for job in list(running):
                self._poll(job)
                if job.state != "running":
                    running.remove(job)
                    display.ended(job)
            display.update()
            if running:
                time.sleep(POLL_SECONDS)

    def _start(self, job: Job) -> None:
        threads = str(max(1, usable_cpus() // self.sweep.n_jobs))
        environment = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
        environment[SWEEP_PID] = str(os.getpid())
        with open(job.directory / "job.log", "ab") as log:
            job.process = subprocess.Popen(
                [*CHILD, *self.sweep.flags, *job.overrides, "hydra.mode=RUN"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the parent only, which ends the children
            )
        job.state = "running"
        job.started = time.monotonic()

    def _poll(self, job: Job) -> None:
        """Updates a running job, and settles it if its process has ended."""
        assert job.process is not None
        code = job.process.poll()
        status = read_status(job.directory) or {}
        is_childs = status.get("pid") == job.process.pid
        if is_childs or code is not None:
            job.iterations_done = int(status.get("iterations_done") or 0)
        if code is None:
            return
        if code != 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process.pid, signal.SIGKILL)  # ranks and services that a dead child left behind
        job.state, job.error = _ended(job, code, status, is_childs=is_childs)

    def _interrupt(self) -> None:
        """Ends the children: a signal, a grace period, then a kill."""
        running = [job for job in self.sweep.jobs if job.state == "running" and job.process is not None]
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


def _require_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "job.log", "ab"):
            pass
    except OSError as error:
        raise RunUnwritable(f"{directory}: cannot be created or written ({error.strerror})") from error


def _ended(job: Job, code: int, status: Mapping[str, Any], *, is_childs: bool) -> tuple[str, str | None]:
    """The final state of a job and its error in one line; writes them if the child could not."""
    if code == 0 and status.get("state") == "done":
        return "done", None
    if is_childs and status.get("state") in ("failed", "interrupted"):
        error = status.get("error")
        return status["state"], f"{error['type']}: {error['message']}" if error else None
    # If Lightning killed rank 0, another rank may have left its reason.
    record = reported(job.directory) or death_record(*_death(code), log=job.directory / "job.log")
    settle(job.directory, state="failed", error=record, identity=identity(job))
    lines = [line for line in record["traceback"].splitlines() if line.strip()]
    last = f"; its last output: {lines[-1].strip()[:300]}" if lines and code > 0 else ""
    return "failed", f"{record['type']}: {record['message']}{last}"


def _death(code: int) -> tuple[str, str]:
    if code == 0:
        return "Vanished", "the process ended with exit code 0 before the run was done"
    return death(code, "the process")
