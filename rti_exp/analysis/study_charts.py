"""The charts of a study for which there is data. Only usable runs are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rti_exp.analysis.arm_summary import KS, OUTCOMES, ArmSummary, Summary
from rti_exp.analysis.chart_rendering import COLOURS, GREY, INK, PAPER, SIZE, Chart, legend
from rti_exp.analysis.leaks import leak_charts, should_report_leaks
from rti_exp.analysis.learning_dynamics import probe_charts
from rti_exp.analysis.study import Study
from rti_exp.analysis.text import plain_text
from rti_exp.analysis.training_curves import arm_colours, curve_chart, evaluation_series, metric_series
from rti_exp.runs import COMPUTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCEPTED = COLOURS[2]
LOSSES = ("#eb6834", "#2a78d6", "#c98500", "#d55181", "#7a6ae0", "#e34948", GREY)
CURVES = (
    ("training_reward", "reward/mean", "Reward while training", "mean reward"),
    ("pass_before", "pass@G/before", "Groups with a success before intervention", "share of groups"),
    ("all_failed", "groups/all_failed", "Groups that failed as a whole", "share of groups"),
    ("accepted_perplexity", "correction/accepted_perplexity_mean", "Perplexity of accepted corrections", "mean"),
)


def _headline(study: Study, arms: Sequence[ArmSummary], axes: Axes) -> None:
    colours = arm_colours(study)
    axes.set_title("Held-out success, last evaluation, 95% intervals")
    for place, arm in enumerate(reversed(arms)):
        colour, _ = colours[arm.arm]
        for k, offset, marker, fill in ((KS[0], 0.14, "o", colour), (KS[1], -0.14, "s", "none")):
            estimate = arm.passes[k]
            if estimate is None or math.isnan(estimate.value):
                continue
            errors = [[max(0.0, estimate.value - estimate.low)], [max(0.0, estimate.high - estimate.value)]]
            axes.errorbar(estimate.value, place + offset, xerr=errors, fmt=marker, color=colour, mfc=fill, capsize=2)
        if arm.base is not None:
            axes.plot([arm.base.value] * 2, [place - 0.3, place + 0.3], color=GREY, linewidth=2)
    axes.plot([], [], "o", color=INK, label=f"pass@{KS[0]}")
    axes.plot([], [], "s", color=INK, mfc="none", label=f"pass@{KS[1]}")
    axes.plot([], [], "|", color=GREY, markersize=12, markeredgewidth=2, label="base pass@1")
    axes.set_yticks(range(len(arms)), [arm.arm for arm in reversed(arms)])
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(arms) - 0.4)
    axes.grid(axis="y", visible=False)
    legend(axes)


def _funnel(arms: Sequence[ArmSummary], axes: Axes) -> None:
    axes.set_title("Interventions by outcome, share of attempts")
    shown = [arm for arm in reversed(arms) if arm.attempts > 0]
    seen = [name for name in OUTCOMES if any(arm.outcomes[name] > 0 for arm in shown)]
    # Accepted comes first, in a separate colour; the losses follow in pipeline order.
    ordered = sorted(seen, key=lambda name: (name != "accepted", OUTCOMES.index(name)))
    left = np.zeros(len(shown))
    for name in ordered:
        place = OUTCOMES.index(name)
        colour = ACCEPTED if name == "accepted" else LOSSES[place % len(LOSSES)]
        hatch = "///" if len(LOSSES) <= place and name != "accepted" else None
        widths = np.array([arm.outcomes[name] / arm.attempts for arm in shown])
        style: dict[str, Any] = {"height": 0.6, "color": colour, "edgecolor": PAPER, "linewidth": 0.8, "hatch": hatch}
        axes.barh(range(len(shown)), widths, left=left, label=name.replace("_", " "), **style)
        left += widths
    axes.set_yticks(range(len(shown)), [f"{arm.arm}\n{arm.attempts:.0f} attempts" for arm in shown])
    axes.set_xlim(0, 1)
    axes.grid(axis="y", visible=False)
    legend(axes, least=1)


def perplexities(study: Study) -> dict[str, list[float]]:
    """source -> recorded perplexities of its corrections."""
    rows = study.of_usable(study.interventions)
    by_source: dict[str, list[float]] = {}
    for source, value in zip(rows["source"].tolist(), rows["perplexity"].tolist(), strict=True):
        if value >= 1 and math.isfinite(value):
            by_source.setdefault(plain_text(source), []).append(value)
    return by_source


def gates(study: Study) -> list[float]:
    """The finite deltas >= 1 of the usable runs."""
    deltas = set(study.usable_runs["delta"].tolist())
    return sorted(delta for delta in deltas if math.isfinite(delta) and delta >= 1)


def _perplexity_histogram(study: Study, axes: Axes) -> None:
    axes.set_title("Perplexity of corrections under the rollout prompt")
    by_source = perplexities(study)
    top = max(max(map(max, by_source.values())), *gates(study), 10.0)
    bins = np.geomspace(1, top * 1.05, 36).tolist()
    for place, source in enumerate(sorted(by_source)):
        axes.hist(by_source[source], bins=bins, color=COLOURS[place % len(COLOURS)], alpha=0.6, label=source)
    axes.set_xscale("log")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 1000, 10_000) if tick <= top * 1.05]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    for delta in gates(study):
        axes.axvline(delta, color=INK, linewidth=1.2, linestyle="--")
        top_left: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "xytext": (3, -2),
            "textcoords": "offset points",
        }
        axes.annotate(f"gate {delta:g}", (delta, 1), va="top", fontsize=8, **top_left)
    axes.set_xlabel("perplexity (log scale)")
    axes.set_ylabel("corrections")
    legend(axes)


def _rho_histogram(values: NDArray[np.float32], axes: Axes) -> None:
    axes.set_title("Weight of corrected tokens, after clipping")
    axes.hist(values, bins=40, color=COLOURS[0])
    axes.axvline(1, color=INK, linewidth=1.2, linestyle="--")
    axes.set_xlabel("rho")
    axes.set_ylabel("tokens")


def _compute(arms: Sequence[ArmSummary], axes: Axes) -> None:
    axes.set_title("Tokens of a finished run, mean")
    names = [name for name in COMPUTE if name.endswith("_tokens")]
    for place, name in enumerate(names):
        widths = [arm.compute[name] / 1000 for arm in reversed(arms)]
        heights = [row + 0.25 * (1 - place) for row in range(len(arms))]
        axes.barh(heights, widths, height=0.22, color=COLOURS[place], label=name.removesuffix("_tokens"))
    labels = [f"{arm.arm}\n{arm.compute['seconds']:.0f} s" for arm in reversed(arms)]
    axes.set_yticks(range(len(arms)), labels)
    axes.set_xlabel("thousand tokens, roles included")
    axes.grid(axis="y", visible=False)
    legend(axes)


def study_charts(study: Study, summary: Summary) -> list[Chart]:
    arms = [arm for arm in summary.arms if arm.seeds]
    height = 1.6 + 0.42 * len(arms)
    charts: list[Chart] = []

    def add(name: str, caption: str, draw: Callable[[Axes], None], height: float = 0.0) -> None:
        charts.append(Chart(name=name, caption=caption, draw=draw, height=max(SIZE[1], height)))

    if any(arm.passes[KS[0]] is not None for arm in arms):
        caption = "Held-out pass@1 and pass@8 by arm, with 95% intervals, against the base."
        add("headline", caption, partial(_headline, study, arms), height)
    for k in KS:
        if series := evaluation_series(study, k):
            title, caption = f"Held-out pass@{k}", f"Held-out pass@{k} over training"
            name = f"heldout_pass_{k}"
            charts.append(curve_chart(study, name, series, title, f"pass@{k}", caption=caption, share=True))
    for name, metric, title, label in CURVES:
        if series := metric_series(study, metric):
            caption, share = f"{title} ({metric})", label == "share of groups"
            charts.append(curve_chart(study, name, series, title, label, caption=caption, share=share))
    if any(arm.attempts > 0 for arm in arms):
        add("funnel", "Outcomes of the interventions of each arm.", partial(_funnel, arms), height + 0.9)
    if perplexities(study):
        caption = "Perplexity of all recorded corrections, by source; dashed: the gates of the arms."
        add("perplexity", caption, partial(_perplexity_histogram, study))
    weights = np.concatenate([np.empty(0, np.float32), *study.of_usable(study.interventions)["rho_T"].tolist()])
    if len(weights):
        add("rho", f"rho of corrected tokens ({len(weights)} recorded).", partial(_rho_histogram, weights))
    if arms and all(math.isfinite(value) for arm in arms for value in arm.compute.values()):
        caption = "Tokens that a finished run generated, scored and trained on."
        add("compute", caption, partial(_compute, arms), height + 0.4)
    return charts


def report_charts(study: Study, summary: Summary) -> list[Chart]:
    """The study's charts, the fixed probe over all families and, if merges leak, three lines for each arm."""
    return [
        *study_charts(study, summary),
        *probe_charts(study)[:1],
        *(leak_charts(study) if should_report_leaks(study) else []),
    ]
