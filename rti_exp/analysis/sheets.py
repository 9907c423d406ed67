"""The tables of a study as text cells, the same for every way of showing them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rti_exp.analysis.cells import NONE, Sheet, show_count, show_interval
from rti_exp.analysis.leaks import leak_sheet, worth_telling
from rti_exp.analysis.learning import learning_sheet
from rti_exp.analysis.reading import COMPUTE, Study
from rti_exp.analysis.statistics import RESAMPLES, Difference, Estimate, seeds_needed
from rti_exp.analysis.summary import KS, OUTCOMES, ArmSummary, Summary, heldout
from rti_exp.analysis.text import plain_text

EFFECT = 0.05
"""The difference that the note on seeds needed is about."""
FEW_SEEDS = 10
FEW_SEEDS_NOTE = (
    f"With fewer than {FEW_SEEDS} seeds percentile intervals are too narrow: they cannot reach beyond the seeds seen "
    "(if seeds are all that varies they cover 73% at 3, 84% at 5, 90% at 10)."
)
"""Coverage of the mean of normal numbers, by simulation."""

SHOWN_STATES = ("done", "failed", "interrupted", "running", "damaged", "duplicate", "unknown", "missing")


def _show_states(arm: ArmSummary) -> str:
    """`2 done (0, 1), 1 failed`: the seeds are those in the means."""
    counts = {state: f"{arm.states[state]} {state}" for state in SHOWN_STATES if state in arm.states}
    if arm.seeds:
        counts["done"] += f" ({', '.join(map(str, arm.seeds))})"
    return ", ".join(counts.values())


def _interval_notes(study: Study, summary: Summary) -> tuple[str, ...]:
    notes = []
    counts = {len(arm.seeds) for arm in summary.arms if arm.seeds}
    if counts:
        notes.append(
            f"Intervals: 95%, percentile, {RESAMPLES:,} bootstrap draws of seeds, then of tasks "
            "(a task drawn is drawn for all seeds that share it). IQM: interquartile mean of the seeds' pass@1."
        )
    if 1 in counts:
        notes.append("Arms with one seed: clustered by task only; the interval says nothing about other seeds.")
    if any(1 < count < FEW_SEEDS for count in counts):
        notes.append(FEW_SEEDS_NOTE)
    found = [arm.passes[k] for arm in summary.arms for k in KS] + [arm.base for arm in summary.arms]
    if any(one is not None and one.low == one.high for one in found):
        notes.append(
            "An interval without width (all tasks and seeds alike) is a limit of the bootstrap, not certainty."
        )
    iterations = {arm.last_iterations for arm in summary.arms if arm.last_iterations}
    if len({place for places in iterations for place in places}) > 1:
        places = "; ".join(f"{arm.arm}: {', '.join(map(str, arm.last_iterations))}" for arm in summary.arms)
        notes.append(f"The last evaluations are not of the same iteration: {places}.")
    samples = heldout(study)["samples"].tolist()
    short = sum(count < max(KS) for count in samples)
    if short:
        none = samples.count(0)
        notes.append(
            f"{short} of {len(samples)} task evaluations have fewer than {max(KS)} valid samples and are left out "
            f"of pass@{max(KS)}" + (f"; {none} have none and are left out of pass@1." if none else ".")
        )
    return tuple(notes)


def results_sheet(study: Study, summary: Summary) -> Sheet:
    return Sheet(
        title="Held-out tasks, last evaluation",
        columns=("arm", "runs (seeds)", "base pass@1", *(f"pass@{k}" for k in KS), "IQM"),
        labels=2,
        rows=tuple(
            (
                arm.arm,
                _show_states(arm),
                show_interval(arm.base),
                *(show_interval(arm.passes[k]) for k in KS),
                NONE if math.isnan(arm.iqm[KS[0]]) else f"{arm.iqm[KS[0]]:.3f}",
            )
            for arm in summary.arms
        ),
        notes=_interval_notes(study, summary),
    )


def _per_run(total: float, arm: ArmSummary) -> str:
    return show_count(total / len(arm.seeds)) if arm.seeds else NONE


def compute_sheet(summary: Summary) -> Sheet:
    return Sheet(
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
            "Generated and scored include the tokens of the roles. Seconds are of training, without evaluations.",
            *(_lost_note(arm) for arm in summary.arms if arm.lost_rollouts > 0),
        ),
    )


def _lost_note(arm: ArmSummary) -> str:
    every = arm.rollouts + arm.lost_rollouts
    return (
        f"{arm.arm}: {arm.lost_rollouts:.0f} of {every:.0f} rollouts of training ({arm.lost_rollouts / every:.1%}) are "
        f"infrastructure failures; means are over the other {arm.rollouts:.0f}."
    )


def _show_pairing(found: Difference | None) -> str:
    if found is None or math.isnan(found.value):
        return NONE
    if not found.paired:
        return "unpaired"
    return f"{found.seeds} x {found.tasks}"


def differences_sheet(summary: Summary) -> Sheet:
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
                NONE if math.isnan(chance) or arm.seed_pairs < 2 else f"{chance:.2f}",
                NONE if needed is None else str(needed),
            )
        )
    notes = (
        "Paired over: seeds x tasks that both arms have.",
        "P(better): share of seed pairs in which the arm's pass@1 is higher, ties half; - with one pair.",
        f"Seeds needed: for a difference of {EFFECT} in pass@1 at 80% power (paired t-test, level 0.05), "
        "from the spread of the seeds' differences; rough with few seeds.",
        "Not corrected for looking at several arms.",
    )
    unpaired = any(found is not None and not found.paired for arm in summary.differences for found in (arm.passes[1],))
    if unpaired:
        notes = (*notes, "Unpaired: the arms share no seed or were evaluated on different tasks; resampled apart.")
    return Sheet(
        title=f"Difference to {summary.baseline}",
        columns=("arm", *(f"pass@{k}" for k in KS), "paired over", "P(better)", "seeds needed"),
        rows=tuple(rows),
        notes=notes if rows else ("No second arm with a finished run.",),
    )


def _share(count: float, attempts: float) -> str:
    if math.isnan(count) or math.isnan(attempts):
        return NONE
    return f"{count:.0f} ({count / attempts:.0%})" if attempts else f"{count:.0f}"


def funnel_sheet(summary: Summary) -> Sheet:
    """Attempts by outcome, summed over finished runs; outcomes that no arm has are left out."""
    arms = [arm for arm in summary.arms if arm.seeds]
    seen = [name for name in OUTCOMES if any(arm.outcomes[name] != 0 for arm in arms)]
    attempts = ("attempts", *(show_count(arm.attempts) for arm in arms))
    rows = [(name.replace("_", " "), *(_share(arm.outcomes[name], arm.attempts) for arm in arms)) for name in seen]
    return Sheet(
        title="Interventions by outcome, sum over finished runs",
        columns=("outcome", *(arm.arm for arm in arms)),
        rows=(attempts, *rows) if arms else (),
    )


def families_sheet(summary: Summary) -> Sheet:
    """pass@1, a row a family; the base is that of the first arm that has one."""
    arms = [arm for arm in summary.arms if arm.families]
    families = sorted({family for arm in arms for family in arm.families})
    bases = {arm.arm: [arm.families.get(family, (None, None))[0] for family in families] for arm in arms}
    of_base = next((name for name, found in bases.items() if any(one is not None for one in found)), None)
    base = bases[of_base] if of_base is not None else [None] * len(families)
    rows = [
        (
            family,
            show_interval(base[place]),
            *(show_interval(arm.families[family][1] if family in arm.families else None) for arm in arms),
        )
        for place, family in enumerate(families)
    ]
    differ = any(_values(found) != _values(base) for found in bases.values())
    notes = (f"The base is that of {of_base}; it is not the same for all arms.",) if differ else ()
    return Sheet(
        title="Held-out tasks by family, pass@1 of the last evaluation",
        columns=("family", "base", *(arm.arm for arm in arms)),
        rows=tuple(rows),
        notes=notes,
        may_shorten=True,
    )


def _values(found: Sequence[Estimate | None]) -> list[float | None]:
    return [None if one is None else one.value for one in found]


def listed_sheet(study: Study) -> Sheet:
    """Everything that is in no mean, and remarks on runs that are."""
    rows = []
    for run in study.runs.to_dict("records"):
        if run["usable"]:
            continue
        error = ": ".join(part for part in (run["error_type"], run["error_message"]) if part)
        typed = " ".join(run["overrides"]) if run["arm"] == "unknown" else ""
        why = plain_text("; ".join(part for part in (error, run["why_not"], typed) if part))
        seed = NONE if is_absent(run["seed"]) else str(int(run["seed"]))
        rows.append((run["arm"], seed, run["state"], run["run_key"], why or NONE))
    rows += [(arm, str(seed), "missing", NONE, "no run directory") for arm, seed in study.missing]
    rows += [(NONE, NONE, "remark", problem.run, plain_text(problem.what)) for problem in study.problems]
    return Sheet(
        title="Not in the means, and remarks",
        columns=("arm", "seed", "state", "run", "message"),
        labels=5,
        rows=tuple(rows),
    )


def is_absent(value: Any) -> bool:
    return value is None or value != value


def sheets(study: Study, summary: Summary) -> list[Sheet]:
    """All tables of a study; those without rows are left out, but for the first."""
    found = [
        results_sheet(study, summary),
        compute_sheet(summary),
        differences_sheet(summary),
        learning_sheet(study, summary),
        funnel_sheet(summary),
        *([leak_sheet(study)] if worth_telling(study) else []),
        families_sheet(summary),
        listed_sheet(study),
    ]
    return [sheet for place, sheet in enumerate(found) if sheet.rows or place == 0]
