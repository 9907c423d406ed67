"""`python -m rti_exp.compute STUDY`: the tokens that each arm spent, and keys that let GRPO spend as much.

Counts tokens generated and scored, including those of roles and teachers (`status.json`, `compute`), as means over the
study's finished runs. Prints two ways to match an arm: more iterations (a token budget) and, if the study has an arm of
plain GRPO with the same number of iterations and tasks, more samples (a larger group). Exit code 0, or 2 if the study
or arm does not exist.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rti_exp.runs.redaction import redact_output


def main(arguments: Sequence[str] | None = None) -> int:
    redact_output()
    parser = argparse.ArgumentParser(prog="python -m rti_exp.compute", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    parser.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    parser.add_argument("--arm", help='only the keys for this arm, e.g. "experiment=rti"')
    options = parser.parse_args(arguments)
    from rti_exp.analysis.compute_matching import arm_compute, matching_lines
    from rti_exp.analysis.study import StudyError, find_study, load_study

    try:
        arms = arm_compute(load_study(find_study(options.study, options.runs_root), interventions=False))
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = [arm.arm for arm in arms]
    if not arms or (options.arm is not None and options.arm not in names):
        arm = options.arm or "this study"
        print(
            f"error: no finished run of {arm}; arms with finished runs: {'; '.join(names) or 'none'}", file=sys.stderr
        )
        return 2
    print("\n".join(matching_lines(arms, options.arm)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
