"""The tables of a study, the same for the terminal, results.md, the report and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rti_exp.analysis.arm_summary import KS, OUTCOMES, ArmSummary, Summary, heldout
from rti_exp.analysis.leaks import leak_table, should_report_leaks
from rti_exp.analysis.learning_dynamics import learning_table
from rti_exp.analysis.statistics import RESAMPLES, Difference, Estimate, seeds_needed
from rti_exp.analysis.study import Study, records
from rti_exp.analysis.table_rendering import EMPTY, Table, show_count, show_interval
from rti_exp.analysis.text import plain_text
from rti_exp.runs import COMPUTE

EFFECT = 0.05
"""The difference in pass@1 that the column "seeds needed" refers to."""
FEW_SEEDS = 10
FEW_SEEDS_NOTE = (
    f"With fewer than {FEW_SEEDS} seeds, percentile intervals are too narrow: they cannot extend beyond the observed "
    "seeds (if only seeds vary, they cover 73% at 3 seeds, 84% at 5, 90% at 10)."
)
"""Coverage of the mean of normal numbers, by simulation."""

SHOWN_STATES = ("done", "failed", "interrupted", "running", "damaged", "duplicate", "unknown", "missing")


def _show_states(arm: ArmSummary) -> str:
    """`2 done (0, 1), 1 failed`, with the seeds that are in the means."""
    counts = {state: f"{arm.states[state]} {state}" for state in SHOWN_STATES if state in arm.states}
    if arm.seeds:
        counts["done"] += f" ({', '.join(map(str, arm.seeds))})"
    return ", ".join(counts.values())


def _interval_notes(study: Study, summary: Summary) -> tuple[str, ...]:
    notes = []
    counts = {len(arm.seeds) for arm in summary.arms if arm.seeds}
    if counts:
        notes.append(
            f"Intervals: 95%, percentile bootstrap, {RESAMPLES:,} resamples of seeds, then of tasks (a task is drawn "
            "for all seeds that share it). IQM: interquartile mean of the seeds' pass@1."
        )
    if 1 in counts:
        notes.append("Arms with one seed: clustered by task only; the interval does not cover other seeds.")
    if any(1 < count < FEW_SEEDS for count in counts):
        notes.append(FEW_SEEDS_NOTE)
    estimates = [arm.passes[k] for arm in summary.arms for k in KS] + [arm.base for arm in summary.arms]
    if any(estimate is not None and estimate.low == estimate.high for estimate in estimates):
        notes.append(
            "An interval of zero width (all tasks and seeds agree) is a limit of the bootstrap, not certainty."
        )
    if len({place for arm in summary.arms for place in arm.last_iterations}) > 1:
        places = "; ".join(f"{arm.arm}: {', '.join(map(str, arm.last_iterations))}" for arm in summary.arms)
        notes.append(f"The last evaluations are at different iterations: {places}.")
    samples = heldout(study)["samples"].tolist()
    short = sum(count < max(KS) for count in samples)
    if short:
        without = samples.count(0)
        notes.append(
            f"{short} of {len(samples)} task evaluations have fewer than {max(KS)} valid samples and are excluded from "
            f"pass@{max(KS)}" + (f"; {without} have none and are excluded from pass@1." if without else ".")
        )
    return tuple(notes)


def results_table(study: Study, summary: Summary) -> Table:
    return Table(
        title="Held-out tasks, last evaluation",
        columns=("arm", "runs (seeds)", "base pass@1", *(f"pass@{k}" for k in KS), "IQM"),
        labels=2,
        rows=tuple(
            (
                arm.arm,
                _show_states(arm),
                show_interval(arm.base),
                *(show_interval(arm.passes[k]) for k in KS),
                EMPTY if math.isnan(arm.iqm[KS[0]]) else f"{arm.iqm[KS[0]]:.3f}",
            )
            for arm in summary.arms
        ),
        notes=_interval_notes(study, summary),
    )


def _per_run(total: float, arm: ArmSummary) -> str:
    return show_count(total / len(arm.seeds)) if arm.seeds else EMPTY


def compute_table(summary: Summary) -> Table:
    return Table(
        title="Interventions and compute, mean of a finished run",
        columns=("arm", "attempts", "accepted", "generated", "scored", "trained", "seconds"),
        rows=tuple(
            (
                arm.arm,
                _per_run(arm.attempts, arm),
                _per_run(arm.outcomes["accepted"], arm),
                *(show_count(arm.compute[name]) for name in COMPUTE),
            )
            for arm in summary.arms
        ),
        notes=(
            "Generated and scored tokens include those of the roles. Seconds cover training, without evaluations.",
            *(_lost_note(arm) for arm in summary.arms if arm.lost_rollouts > 0),
        ),
    )


def _lost_note(arm: ArmSummary) -> str:
    total = arm.rollouts + arm.lost_rollouts
    return (
        f"{arm.arm}: {arm.lost_rollouts:.0f} of {total:.0f} training rollouts ({arm.lost_rollouts / total:.1%}) are "
        f"infrastructure failures; means are over the other {arm.rollouts:.0f}."
    )


def _show_pairing(difference: Difference | None) -> str:
    if difference is None or math.isnan(difference.value):
        return EMPTY
    return f"{difference.seeds} x {difference.tasks}" if difference.paired else "unpaired"


def differences_table(summary: Summary) -> Table:
    rows = []
    for arm in summary.differences:
        first = arm.passes[KS[0]]
        needed = seeds_needed(first.seed_differences, EFFECT) if first is not None else None
        chance = arm.probability_of_improvement
        rows.append(
            (
                arm.arm,
                *(show_interval(arm.passes[k], signed=True) for k in KS),
                _show_pairing(first),
                EMPTY if math.isnan(chance) or arm.seed_pairs < 2 else f"{chance:.2f}",
                EMPTY if needed is None else str(needed),
            )
        )
    notes = (
        "Paired over: seeds x tasks that both arms have.",
        "P(better): share of seed pairs in which the arm's pass@1 is higher; ties count half; - with one pair.",
        f"Seeds needed: to detect a difference of {EFFECT} in pass@1 at 80% power (paired t-test, level 0.05), "
        "from the spread of the seeds' differences; a rough estimate with few seeds.",
        "Not corrected for multiple comparisons.",
    )
    if any((difference := arm.passes[KS[0]]) is not None and not difference.paired for arm in summary.differences):
        notes += ("Unpaired: the arms share no seed or were evaluated on different tasks; resampled separately.",)
    return Table(
        title=f"Difference to {summary.baseline}",
        columns=("arm", *(f"pass@{k}" for k in KS), "paired over", "P(better)", "seeds needed"),
        rows=tuple(rows),
        notes=notes if rows else ("No other arm has a finished run.",),
    )


def _share(count: float, attempts: float) -> str:
    if math.isnan(count) or math.isnan(attempts):
        return EMPTY
    return f"{count:.0f} ({count / attempts:.0%})" if attempts else f"{count:.0f}"


def funnel_table(summary: Summary) -> Table:
    """Attempts by outcome, summed over finished runs, without outcomes that occur in no arm."""
    arms = [arm for arm in summary.arms if arm.seeds]
    seen = [name for name in OUTCOMES if any(arm.outcomes[name] != 0 for arm in arms)]
    attempts = ("attempts", *(show_count(arm.attempts) for arm in arms))
    rows = [(name.replace("_", " "), *(_share(arm.outcomes[name], arm.attempts) for arm in arms)) for name in seen]
    return Table(
        title="Interventions by outcome, sum over finished runs",
        columns=("outcome", *(arm.arm for arm in arms)),
        rows=(attempts, *rows) if arms else (),
    )


def families_table(summary: Summary) -> Table:
    """pass@1 by family. The base is that of the first arm that has one."""
    arms = [arm for arm in summary.arms if arm.families]
    families = sorted({family for arm in arms for family in arm.families})
    bases = {arm.arm: [arm.families.get(family, (None, None))[0] for family in families] for arm in arms}
    base_arm = next((arm for arm, estimates in bases.items() if any(estimates)), None)
    base = bases[base_arm] if base_arm is not None else [None] * len(families)
    rows = [
        (
            family,
            show_interval(base[place]),
            *(show_interval(arm.families[family][1] if family in arm.families else None) for arm in arms),
        )
        for place, family in enumerate(families)
    ]
    differ = any(_values(estimates) != _values(base) for estimates in bases.values())
    return Table(
        title="Held-out tasks by family, pass@1 of the last evaluation",
        columns=("family", "base", *(arm.arm for arm in arms)),
        rows=tuple(rows),
        notes=(f"The base is that of {base_arm}; the arms have different bases.",) if differ else (),
        may_shorten=True,
    )


def _values(estimates: Sequence[Estimate | None]) -> list[float | None]:
    return [None if estimate is None else estimate.value for estimate in estimates]


def excluded_table(study: Study) -> Table:
    """Runs that are in no mean, and remarks on runs that are."""
    rows = []
    for run in records(study.runs):
        if run["usable"]:
            continue
        error = ": ".join(part for part in (run["error_type"], run["error_message"]) if part)
        typed = " ".join(run["overrides"]) if run["arm"] == "unknown" else ""
        message = plain_text("; ".join(part for part in (error, run["why_not"], typed) if part))
        seed = EMPTY if is_absent(run["seed"]) else str(int(run["seed"]))
        rows.append((run["arm"], seed, run["state"], run["run_key"], message or EMPTY))
    rows += [(arm, str(seed), "missing", EMPTY, "no run directory") for arm, seed in study.missing]
    rows += [(EMPTY, EMPTY, "remark", problem.run, plain_text(problem.fault)) for problem in study.problems]
    return Table(
        title="Not in the means, and remarks",
        columns=("arm", "seed", "state", "run", "message"),
        labels=5,
        rows=tuple(rows),
    )


def is_absent(value: Any) -> bool:
    return value is None or value != value


def study_tables(study: Study, summary: Summary) -> list[Table]:
    """All tables of a study. The first is always there, the others only if they have rows."""
    optional = [
        compute_table(summary),
        differences_table(summary),
        learning_table(study, summary),
        funnel_table(summary),
        *([leak_table(study)] if should_report_leaks(study) else []),
        families_table(summary),
        excluded_table(study),
    ]
    return [results_table(study, summary), *(table for table in optional if table.rows)]
