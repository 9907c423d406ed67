"""The tokens that each arm of a study spent, and the keys that let GRPO spend as much as another arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rti_exp.analysis.study import Study, select
from rti_exp.runs import read_config


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

    @property
    def length(self) -> tuple[int, int]:
        return self.max_iterations, self.tasks_per_iteration


def arm_compute(study: Study) -> list[ArmCompute]:
    """The arms that have finished runs, in the study's order."""
    arms: list[ArmCompute] = []
    for arm in study.arms:
        runs: Any = select(study.usable_runs, arm=arm)
        if runs.empty:
            continue
        config = read_config(Path(runs["directory"].iloc[0]))
        arms.append(
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
    return arms


def matched_budget(arm: ArmCompute) -> int:
    """The token budget that lets GRPO spend as much as the arm."""
    return math.ceil(arm.tokens)


def matched_group_size(arm: ArmCompute, grpo: ArmCompute) -> int:
    """The group size at which GRPO spends as much as the arm, assuming that tokens are proportional to it."""
    return max(2, round(grpo.group_size * arm.tokens / grpo.tokens))


def grpo_for(arm: ArmCompute, arms: Sequence[ArmCompute]) -> ArmCompute | None:
    """The plain GRPO with the arm's iterations and tasks, preferably with its group size."""
    candidates = [grpo for grpo in arms if grpo.plain_grpo and grpo.length == arm.length]
    return max(candidates, key=lambda grpo: grpo.group_size == arm.group_size, default=None)


def matching_lines(arms: Sequence[ArmCompute], only: str | None = None) -> list[str]:
    """The table of tokens, then the matching keys for each arm (or only one) that spent more than GRPO."""
    width = max(len(arm.arm) for arm in arms)
    lines = [f"{'arm':<{width}}  runs  {'generated':>12}  {'scored':>12}  {'together':>12}"]
    lines += [
        f"{arm.arm:<{width}}  {arm.runs:>4}  {arm.generated:>12,.0f}  {arm.scored:>12,.0f}  {arm.tokens:>12,.0f}"
        for arm in arms
    ]
    for arm in arms:
        grpo = grpo_for(arm, arms)
        if arm.plain_grpo:
            lines += ["", f"{arm.arm} is plain GRPO itself."] if arm.arm == only else []
        elif arm.arm == only or (only is None and (grpo is None or arm.tokens > grpo.tokens)):
            lines += ["", f"GRPO with the tokens of {arm.arm}:"]
            lines.append(f"  more iterations  experiment=compute_matched budget.tokens={matched_budget(arm)}")
            if grpo is not None and grpo.tokens > 0:
                lines.append(f"  more samples     experiment=grpo group_size={matched_group_size(arm, grpo)}")
            else:
                length = f"{arm.max_iterations} iterations of {arm.tasks_per_iteration} tasks"
                lines.append(f"  more samples     unknown: the study has no plain GRPO of {length}")
    return lines
