"""The metrics of a short run of the embedded world. Rewrite them with `python -m tests.guarantees.golden`.

A change of behaviour fails tests/guarantees/test_golden.py. If it is intended, run that command, look at
`git diff tests/guarantees/golden_rows/short_run.json`, and say in the commit why the numbers moved.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rti_exp.config.check import check
from rti_exp.config.compose import composed
from rti_exp.sweep import job
from rti_exp.training.metrics import is_timing

GOLDEN = Path(__file__).parent / "golden_rows" / "short_run.json"
OVERRIDES = (
    "logger=none",
    "max_iterations=2",
    "tasks_per_iteration=8",
    "group_size=4",
    "eval.tasks=8",
    "eval.samples=4",
    "eval.every=1",
    "probe.cases=1",
    "recorder.every=0",
    "gate.delta=5",
    "gate.shadow=true",
)


def machine() -> dict[str, str]:
    """What rounding depends on: with the same, runs are bit-equal."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "torch": str(torch.__version__),
        "numba": version("numba") if find_spec("numba") else "none",
        "cpu": models[0].partition(":")[2].strip() if models else "unknown",
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def short_run() -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what a clock made."""
    with tempfile.TemporaryDirectory() as folder:
        config = composed([*OVERRIDES, f"runs_root={folder}"])
        if job.run_job(config):
            raise RuntimeError("the run failed")
        text = (check(config).directory("single") / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [{name: value for name, value in row.items() if not is_timing(name)} for row in rows]


def main() -> int:
    rows = short_run()
    GOLDEN.parent.mkdir(exist_ok=True)
    written = {"overrides": list(OVERRIDES), "machine": machine(), "rows": rows}
    GOLDEN.write_text(json.dumps(written, indent=1, allow_nan=False) + "\n")
    print(f"{len(rows)} rows written to {GOLDEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
