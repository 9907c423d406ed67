"""What docs/results/confirmation.md tells beside the reports: `python examples/confirm_details.py SEED [RUNS_ROOT]`.

Of confirm_SEED_leaks: merges by family and how many of them leak, held-out pass@1 by iteration, training reward of the
last ten iterations. Of confirm_SEED: what became of the corrections of each family.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rti_exp.analysis.leaks import merges
from rti_exp.analysis.reading import StudyError, load_study


def main(seed: str, runs_root: str = "runs") -> None:
    leaks = load_study(Path(runs_root) / f"confirm_{seed}_leaks")
    merged: Any = merges(leaks)
    print(merged.groupby(["arm", "family"])["leaky"].agg(["count", "sum"]).to_string())
    evaluated: Any = leaks.of_usable(leaks.evaluations)
    totals = evaluated.groupby(["arm", "iteration"])[["successes", "samples"]].sum()
    print((totals["successes"] / totals["samples"]).to_string())
    trained: Any = leaks.of_usable(leaks.metrics)
    late = trained[trained["iteration"] > trained["iteration"].max() - 10]
    print(late.groupby("arm")["reward/mean"].mean().to_string())
    study = load_study(Path(runs_root) / f"confirm_{seed}")
    attempts: Any = study.of_usable(study.interventions)
    print(attempts.groupby(["arm", "family", "outcome"]).size().to_string())


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python examples/confirm_details.py SEED [RUNS_ROOT]")
    try:
        main(*sys.argv[1:])
    except StudyError as error:
        sys.exit(str(error))
