"""What a sweep of many jobs costs besides the jobs: starting, skipping, listing.

    python benchmarks/sweep_overhead.py [--jobs 1000]

Half of the jobs have gate.delta=0, half 5. Their run directories are written as finished runs have them: a config, a
status, the rows of 24 iterations and 4 evaluations of 96 tasks. Each command is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from measure import machine, table

KEYS = ("gate.delta=0,5", "logger=none", "study=many")


def write_runs(root: Path, jobs: int) -> None:
    """Finished runs of all jobs, without checkpoints."""
    from rti_exp.config.compose import composed
    from rti_exp.sweep.configs import SweepConfigs

    configs = SweepConfigs(composed)
    rows = [_metrics(iteration) for iteration in range(1, 25)] + [
        _evaluation(iteration) for iteration in (0, 8, 16, 24)
    ]
    metrics = "".join(json.dumps(row) + "\n" for row in rows)
    for number in range(jobs):
        overrides = [
            f"gate.delta={5 * (number % 2)}",
            "logger=none",
            "study=many",
            f"seed={number // 2}",
            f"runs_root={root}",
        ]
        config = configs.checked(overrides)
        directory = config.directory("many")
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(yaml.safe_dump(config.plain, sort_keys=False))
        (directory / "metrics.jsonl").write_text(metrics)
        status = {
            "state": "done",
            "run_key": config.key,
            "study": "many",
            "overrides": overrides,
            "seed": config.run.seed,
            "iterations_done": 24,
            "started": "2026-01-01T00:00:00+00:00",
            "ended": "2026-01-01T00:01:00+00:00",
            "error": None,
            "wandb_id": None,
            "compute": {"generated_tokens": 40000, "scored_tokens": 5000, "trained_tokens": 30000, "seconds": 30.0},
            "pid": 1,
        }
        (directory / "status.json").write_text(json.dumps(status))


def _metrics(iteration: int) -> dict[str, object]:
    return {"kind": "train", "iteration": iteration, **{f"metric/{i}": i / 7 for i in range(60)}, "time/iteration": 1.2}


def _evaluation(iteration: int) -> dict[str, object]:
    tasks = [{"task_id": f"town/{i}", "family": "nav_easy", "samples": 8, "successes": i % 9} for i in range(96)]
    return {"kind": "eval", "iteration": iteration, "split": "heldout", "pass@1": 0.5, "pass@8": 0.7, "tasks": tasks}


def timed(command: Sequence[str], until: str = "") -> tuple[float, float]:
    """Wall and processor seconds of a command, or with `until` of what it does up to a line with that text."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until and until in line:
            seconds = time.perf_counter() - started
            process.send_signal(signal.SIGTERM)
            process.communicate()
            break
    else:
        code = process.wait()
        seconds = time.perf_counter() - started
        if code or until:
            sys.exit("".join(lines[-20:]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    jobs = parser.parse_args().jobs
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        done, new = Path(folder) / "done", Path(folder) / "new"
        write_runs(done, jobs)
        sweep = ["rti_exp.train", "-m", *KEYS, f"seed=range({jobs // 2})"]
        measured = {
            "start: a sweep of new jobs, until its first job begins": timed(
                [*sweep, f"runs_root={new}"], until="to run,"
            ),
            "skip: the same sweep, all done, table included": timed([*sweep, f"runs_root={done}"]),
            "list: `python -m rti_exp.runs list`": timed(["rti_exp.runs", "list", "--runs-root", str(done)]),
        }
        shutil.rmtree(new, ignore_errors=True)
    for name, (wall, processor) in measured.items():
        rows.append([name, f"{wall:.1f}", f"{processor:.1f}", f"{1000 * processor / jobs:.1f}"])
    print(f"{machine()}; {jobs} jobs\n")
    print(table(("command", "seconds", "processor seconds", "processor ms a job"), rows))


if __name__ == "__main__":
    main()
