"""results.md and results.csv: the tables of a study, and its numbers without rounding."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

from rti_exp.analysis.arm_summary import KS, OUTCOMES, ArmSummary, Summary
from rti_exp.analysis.statistics import Difference, Estimate
from rti_exp.analysis.study import Study
from rti_exp.analysis.study_tables import SHOWN_STATES, is_absent, study_tables
from rti_exp.analysis.table_rendering import as_markdown
from rti_exp.runs import COMPUTE, write_atomically


def write_results(study: Study, summary: Summary, directory: Path) -> list[Path]:
    """Writes both files atomically into an existing directory; returns their paths."""
    contents = {
        directory / "results.md": as_markdown(study.title, study_tables(study, summary)),
        directory / "results.csv": as_csv(summary),
    }
    for path, text in contents.items():
        write_atomically(path, text)
    return list(contents)


def as_csv(summary: Summary) -> str:
    """One row per arm with unrounded numbers; absent numbers are empty. Interventions are sums over runs."""
    rows = [_row(arm, summary) for arm in summary.arms]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if is_absent(value) else _safe(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _row(arm: ArmSummary, summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm.arm, **{f"runs_{state}": arm.states.get(state, 0) for state in SHOWN_STATES}}
    row["seeds"] = " ".join(str(seed) for seed in arm.seeds)
    row |= _interval("base_pass@1", arm.base)
    passes = next((item.passes for item in summary.differences if item.arm == arm.arm), {})
    for k in KS:
        row |= _interval(f"pass@{k}", arm.passes[k])
        row[f"pass@{k}_interquartile_mean"] = arm.iqm[k]
        difference = passes.get(k)
        row |= _interval(f"pass@{k}_difference", difference)
        row[f"pass@{k}_difference_paired"] = "" if difference is None else difference.paired
    row["interventions"] = arm.attempts
    row |= {f"outcome_{name}": arm.outcomes[name] for name in OUTCOMES}
    return row | {f"{name}_mean": arm.compute[name] for name in COMPUTE}


def _interval(name: str, estimate: Estimate | Difference | None) -> dict[str, float]:
    values = (math.nan,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _safe(value: Any) -> Any:
    # A spreadsheet would run a cell that starts like a formula.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@") else value
