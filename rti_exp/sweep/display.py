"""What a sweep shows: the plan before, progress during, the results after.

On a terminal the progress is drawn in place; elsewhere it is a plain line every few seconds.
"""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rti_exp.analysis.text import plain_text
from rti_exp.runs import read_status
from rti_exp.runs.bounded import MAX_INTEGER, visible

if TYPE_CHECKING:
    from rti_exp.sweep.jobs import Job, Sweep

SECONDS_PER_ITERATION = 2.0
"""Of one RL iteration of the default config on one core with its share of the start and of the evaluations, for the
estimate before anything has run."""
LINE_SECONDS = 10.0


def shown(value: Any) -> str:
    """A config value as one would type it: 5, not 5.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "null" if value is None else str(value)


def label(job: Job) -> str:
    return " ".join([*(f"{key}={shown(value)}" for key, value in job.arm.items()), f"seed={job.seed}"])


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def measured_seconds_per_iteration(study_dir: Path) -> float | None:
    """The median over the done runs of a study, without evaluations; None if there are none.

    From what the run has counted: between its start and its end it may have lain still.
    """
    figures: list[float] = []
    for directory in study_dir.iterdir() if study_dir.is_dir() else ():
        status = read_status(directory)
        if status is None or status["state"] != "done":
            continue
        compute, done = status.get("compute"), status.get("iterations_done")
        spent = compute.get("seconds") if isinstance(compute, dict) else None
        if isinstance(spent, int | float) and isinstance(done, int) and 0 < spent <= MAX_INTEGER and done > 0:
            figures.append(spent / done)
    return statistics.median(figures) if figures else None


def estimated_seconds(iterations: Iterable[int], *, per_iteration: float, n_jobs: int) -> float:
    """Jobs started in order on `n_jobs` places, each taking its iterations' time."""
    places = [0.0] * n_jobs
    for count in iterations:
        places.sort()
        places[0] += count * per_iteration
    return max(places)


def expected_iterations(job: Job, jobs: Sequence[Job]) -> int:
    """A job's iterations; one that ends with its token budget is taken to do no more than the longest without one."""
    if math.isinf(job.config.budget.tokens):
        return job.iterations
    others = [one.iterations for one in jobs if math.isinf(one.config.budget.tokens)]
    return min(job.iterations, max(others, default=job.iterations))


def next_commands(study_dir: Path) -> list[str]:
    """What to type after a run or a sweep: the report, and W&B's sync if there is something to send."""
    root = [] if study_dir.parent == Path("runs") else ["--runs-root", str(study_dir.parent)]
    lines = ["for the report:", "  " + shlex.join(["python", "-m", "rti_exp.report", study_dir.name, *root])]
    if next(study_dir.glob("*/wandb/offline-run-*"), None) is not None:
        runs = f"{shlex.quote(str(study_dir))}/*/wandb/offline-run-*"
        lines += ["to send them to W&B:", f"  python -m wandb sync {runs}"]
    return lines


class Display:
    """The display of one sweep; a context manager around its run."""

    def __init__(self, sweep: Sweep, console: Console | None = None) -> None:
        self.sweep = sweep
        self.console = console or Console(soft_wrap=True)
        self._progress: Progress | None = None
        self._bars: dict[Path, TaskID] = {}
        self._last_line = 0.0
        self._started = time.monotonic()

    def announce(self) -> None:
        """The table of arms, and how long it may take."""
        sweep = self.sweep
        table = Table(
            title=f"{escape(sweep.study)}: {len(sweep.jobs)} jobs, {sweep.n_jobs} at once", title_justify="left"
        )
        for key in sweep.keys:
            table.add_column(escape(key))
        for heading in ("seeds", "iterations", "state"):
            table.add_column(heading)
        for jobs in self._arms():
            states = [job.state for job in jobs]
            counts = ", ".join(
                f"{states.count(state)} {state}" for state in ("new", "continue", "done") if state in states
            )
            table.add_row(
                *(escape(shown(value)) for value in jobs[0].arm.values()),
                ", ".join(str(job.seed) for job in jobs),
                ", ".join(sorted({str(job.iterations) for job in jobs})),
                counts,
            )
        self.console.print(table)
        left = [max(0, expected_iterations(job, sweep.jobs) - job.iterations_done) for job in sweep.unfinished]
        if not left:
            self.console.print("all jobs are done; fresh=true starts over")
            return
        measured = measured_seconds_per_iteration(sweep.study_dir)
        seconds = estimated_seconds(left, per_iteration=measured or SECONDS_PER_ITERATION, n_jobs=sweep.n_jobs)
        basis = "from the done runs of this study" if measured else "a guess"
        place = escape(visible(sweep.study_dir))
        self.console.print(f"{len(left)} to run, about {duration(seconds)} ({basis}); runs go to {place}")

    def _arms(self) -> list[list[Job]]:
        arms: dict[str, list[Job]] = {}
        for job in self.sweep.jobs:
            arms.setdefault(repr(job.arm), []).append(job)
        return list(arms.values())

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self._progress = Progress(*columns, console=self.console)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self) -> None:
        """Called every fraction of a second."""
        running = [job for job in self.sweep.jobs if job.state == "running"]
        if self._progress is not None:
            for job in running:
                if job.directory not in self._bars:
                    self._bars[job.directory] = self._progress.add_task(escape(label(job)), total=job.iterations)
                self._progress.update(self._bars[job.directory], completed=job.iterations_done)
        elif running and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._last_line = time.monotonic()
            parts = ", ".join(f"{label(job)} {job.iterations_done}/{job.iterations}" for job in running)
            self.console.print(f"{self._clock()} {parts}", markup=False, highlight=False)

    def ended(self, job: Job) -> None:
        """Called when a job has ended."""
        if job.directory in self._bars and self._progress is not None:
            self._progress.update(self._bars[job.directory], completed=job.iterations_done)
        closed = sum(one.state not in ("new", "continue", "running") for one in self.sweep.jobs)
        text = f"{self._clock()} {job.state}: {label(job)} ({closed} of {len(self.sweep.jobs)} jobs)"
        self.console.print(text, markup=False, highlight=False)
        if job.error:
            self.console.print(f"    {plain_text(job.error)}", markup=False, highlight=False)
            self.console.print(f"    {visible(job.directory / 'job.log')}", markup=False, highlight=False)

    def interrupted(self) -> None:
        """Called when the children of an interrupted sweep have ended."""
        for job in self.sweep.jobs:
            self.console.print(f"{job.state}: {label(job)}", markup=False, highlight=False)
        self.console.print("the same command goes on from the last checkpoints", markup=False, highlight=False)

    def _clock(self) -> str:
        return f"[{duration(time.monotonic() - self._started)}]"

    def summary(self) -> None:
        """The results by arm, the failed jobs, and where everything is."""
        sweep = self.sweep
        show_results(sweep.study_dir, self.console)
        for job in sweep.jobs:
            if job.state != "done":
                error = plain_text(job.error or "")
                self.console.print(f"{job.state}: {label(job)}: {error}", markup=False, highlight=False)
                self.console.print(f"    {visible(job.directory / 'job.log')}", markup=False, highlight=False)
        for job in sweep.jobs:
            self.console.print(f"  {job.directory.name}  {label(job)}  {job.state}", markup=False, highlight=False)
        for line in next_commands(sweep.study_dir):
            self.console.print(line, markup=False, highlight=False)


def show_results(study_dir: Path, console: Console | None = None) -> None:
    """The study's table by arm, printed and written into its folder; why there is none, if it cannot be made."""
    from rti_exp.analysis.arm_summary import summarize  # pandas and scipy only now
    from rti_exp.analysis.results_files import write_results
    from rti_exp.analysis.study import StudyError, load_study
    from rti_exp.analysis.study_tables import study_tables
    from rti_exp.analysis.table_rendering import as_rich

    console = console or Console(soft_wrap=True)
    try:
        study = load_study(study_dir, interventions=False)
        summary = summarize(study)
        console.print(as_rich(study.title, study_tables(study, summary)))
        write_results(study, summary, study_dir)
    except (StudyError, ValueError, OSError) as error:  # what ran has run: the exit code must not tell otherwise
        console.print(f"no table: {visible(error)}", markup=False, highlight=False)
    console.print(f"runs: {visible(study_dir)}", markup=False, highlight=False)
