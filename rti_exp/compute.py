"""`python -m rti_exp.compute STUDY`: what each arm spent, and the keys that give GRPO as much as another arm.

Tokens are those generated and scored, roles and teachers included (`status.json`, `compute`); means over the
study's finished runs. Two ways to match an arm are printed: more iterations (a token budget), and, where the study
has an arm of plain GRPO with as many iterations and tasks, more samples (a larger group). Exit code 0, or 2: no such
study, or no such arm.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.report import find_study
from rti_exp.runs import read_config

if TYPE_CHECKING:
    from rti_exp.analysis.reading import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCompute:
    """Means over an arm's finished runs."""

    arm: str
    runs: int
    generated: float
    scored: float
    plain_grpo: bool
    group_size: int
    max_iterations: int
    tasks_per_iteration: int

    @property
    def tokens(self) -> float:
        return self.generated + self.scored


def arm_compute(study: Study) -> list[ArmCompute]:
    """The arms that have finished runs, in the study's order."""
    found: list[ArmCompute] = []
    for arm in study.arms:
        runs: Any = study.usable_runs
        runs = runs[runs["arm"] == arm]
        if len(runs):
            config = read_config(Path(runs["directory"].iloc[0]))
            found.append(
                ArmCompute(
                    arm=arm,
                    runs=len(runs),
                    generated=float(runs["generated_tokens"].mean()),
                    scored=float(runs["scored_tokens"].mean()),
                    plain_grpo=bool(runs["plain_grpo"].iloc[0]),
                    group_size=int(config.get("group_size", 0)),
                    max_iterations=int(config.get("max_iterations", 0)),
                    tasks_per_iteration=int(config.get("tasks_per_iteration", 0)),
                )
            )
    return found


def matched_budget(arm: ArmCompute) -> int:
    """The tokens of a budget that lets GRPO spend what the arm spent."""
    return math.ceil(arm.tokens)


def matched_group_size(arm: ArmCompute, grpo: ArmCompute) -> int:
    """The group size at which GRPO would spend what the arm spent, rounded to the nearest member.

    Tokens are taken to grow with the members of a group; `grpo` spent its own with `grpo.group_size` of them.
    """
    return max(2, round(grpo.group_size * arm.tokens / grpo.tokens))


def grpo_for(arm: ArmCompute, arms: Sequence[ArmCompute]) -> ArmCompute | None:
    """The plain GRPO with as many iterations and tasks as the arm, of its group size if there is one."""
    found = [
        grpo
        for grpo in arms
        if grpo.plain_grpo
        and (grpo.max_iterations, grpo.tasks_per_iteration) == (arm.max_iterations, arm.tasks_per_iteration)
    ]
    return max(found, key=lambda grpo: grpo.group_size == arm.group_size, default=None)


def lines(arms: Sequence[ArmCompute], only: str | None = None) -> list[str]:
    """The table, then for each arm (or `only` one) that spent more than GRPO the keys that match it."""
    width = max(len(arm.arm) for arm in arms)
    text = [f"{'arm':<{width}}  runs  {'generated':>12}  {'scored':>12}  {'together':>12}"]
    text += [
        f"{arm.arm:<{width}}  {arm.runs:>4}  {arm.generated:>12,.0f}  {arm.scored:>12,.0f}  {arm.tokens:>12,.0f}"
        for arm in arms
    ]
    for arm in arms:
        grpo = grpo_for(arm, arms)
        if arm.plain_grpo:
            text += ["", f"{arm.arm} is plain GRPO itself."] if arm.arm == only else []
        elif arm.arm == only or (only is None and (grpo is None or arm.tokens > grpo.tokens)):
            text += ["", f"GRPO with the tokens of {arm.arm}:"]
            text.append(f"  more iterations  experiment=compute_matched budget.tokens={matched_budget(arm)}")
            if grpo is not None and grpo.tokens > 0:
                text.append(f"  more samples     experiment=grpo group_size={matched_group_size(arm, grpo)}")
            else:
                length = f"{arm.max_iterations} iterations of {arm.tasks_per_iteration} tasks"
                text.append(f"  more samples     not known: the study has no plain GRPO of {length}")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rti_exp.compute", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("study", metavar="STUDY", help="a study's name under the runs root, or its directory")
    parser.add_argument("--runs-root", type=Path, default=Path("runs"), help="where studies are (default: runs)")
    parser.add_argument("--arm", help='only the keys for this arm, e.g. "experiment=rti"')
    options = parser.parse_args(arguments)
    from rti_exp.analysis.reading import StudyError, load_study

    try:
        arms = arm_compute(load_study(find_study(options.study, options.runs_root), interventions=False))
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = [arm.arm for arm in arms]
    if not arms or (options.arm is not None and options.arm not in names):
        print(
            f"error: no finished run of {options.arm or 'this study'}; there are: {'; '.join(names)}", file=sys.stderr
        )
        return 2
    print("\n".join(lines(arms, options.arm)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
