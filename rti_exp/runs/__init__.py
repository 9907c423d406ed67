"""The directory of one run: its identity, its status, its records; written by one process, read by any.

    <runs root>/<study>/<run key>/
        config.yaml          as resolved
        status.json          replaced atomically, so that a reader sees a whole one or the one before
        metrics.jsonl        a row per iteration and per evaluation
        interventions.jsonl  every attempt; stops at `Run.limit_bytes`, and says so in its last line
        rollouts.jsonl       sampled groups; stops likewise
        checkpoints/         the newest two
        job.log              what a sweep's child printed

All JSON is strict: infinity is the string "inf", NaN is null.
Nothing here imports torch. `python -m rti_exp.runs` lists runs.
"""

from rti_exp.runs.adopt import adopt, done_elsewhere
from rti_exp.runs.bounded import load_yaml
from rti_exp.runs.json_lines import read_lines, write_atomically
from rti_exp.runs.reader import RunRecord, load_run, load_runs, read_config
from rti_exp.runs.run import Run
from rti_exp.runs.status import (
    COMPUTE,
    STATES,
    RunBroken,
    RunDone,
    RunLocked,
    RunUnwritable,
    death_record,
    error_record,
    is_done,
    is_held,
    is_run_key,
    lock,
    now,
    read_status,
    run_key,
    settle,
)

REPORT_FILES = ("status.json", "config.yaml", "metrics.jsonl", "interventions.jsonl")
"""The files of a run that reports and notebooks read."""

__all__ = [
    "COMPUTE",
    "REPORT_FILES",
    "STATES",
    "Run",
    "RunBroken",
    "RunDone",
    "RunLocked",
    "RunRecord",
    "RunUnwritable",
    "adopt",
    "death_record",
    "done_elsewhere",
    "error_record",
    "is_done",
    "is_held",
    "is_run_key",
    "load_run",
    "load_runs",
    "load_yaml",
    "lock",
    "now",
    "read_config",
    "read_lines",
    "read_status",
    "run_key",
    "settle",
    "write_atomically",
]
