"""Details of docs/results/confirmation.md: `python examples/confirm_details.py STUDY [RUNS_ROOT]`.

For a study of leaks (confirm_leaks_3): merges and leaking merges by family, held-out pass@1 by iteration, training
reward of the last ten iterations. For any study: outcomes of the corrections of each family.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rti_exp.analysis.leaks import merges
from rti_exp.analysis.study import StudyError, load_study


def main(name: str, runs_root: str = "runs") -> None:
    study = load_study(Path(runs_root) / name)
    merged: Any = merges(study)
    print(merged.groupby(["arm", "family"])["leaky"].agg(["count", "sum"]).to_string())
    evaluated: Any = study.of_usable(study.evaluations)
    totals = evaluated.groupby(["arm", "iteration"])[["successes", "samples"]].sum()
    print((totals["successes"] / totals["samples"]).to_string())
    trained: Any = study.of_usable(study.metrics)
    late = trained[trained["iteration"] > trained["iteration"].max() - 10]
    print(late.groupby("arm")["reward/mean"].mean().to_string())
    attempts: Any = study.of_usable(study.interventions)
    print(attempts.groupby(["arm", "family", "outcome"]).size().to_string())


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit("usage: python examples/confirm_details.py STUDY [RUNS_ROOT]")
    try:
        main(*sys.argv[1:])
    except StudyError as error:
        sys.exit(str(error))
