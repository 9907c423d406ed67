"""The charts of a study, those that there is data for. Only usable runs are drawn; bands span the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rti_exp.analysis.figures import INK, PAPER, SIZE, Chart
from rti_exp.analysis.reading import COMPUTE, Study
from rti_exp.analysis.statistics import pass_at_k
from rti_exp.analysis.summary import KS, OUTCOMES, ArmSummary, Summary, heldout
from rti_exp.analysis.text import plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#c98500", "#d55181", "#008300", "#7a6ae0", "#e34948")
"""In this order, never by rank; told apart by the colour-blind, and legible on white and on black."""
GREY = "#8b8f96"
LEGEND_WIDTH, LEGEND_HANDLE = 90, 10
"""Characters that fit beside each other, and what a line's sample takes of them."""
LINE_STYLES = ("-", "--", ":")
ACCEPTED = COLOURS[2]
LOSSES = ("#eb6834", "#2a78d6", "#c98500", "#d55181", "#7a6ae0", "#e34948", GREY)


def arm_colours(study: Study) -> dict[str, tuple[str, str]]:
    """Colour and line style of each arm, by its place in the study, so that all charts agree."""
    return {
        arm: (COLOURS[place % len(COLOURS)], LINE_STYLES[place // len(COLOURS) % len(LINE_STYLES)])
        for place, arm in enumerate(study.arms)
    }


def plain_ticks(axis: Axis) -> None:
    """Numbers as they are on a logarithmic axis: matplotlib's own labels are mathematical text, which is off here."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    low, high = axis.get_view_interval()
    shown = FuncFormatter(lambda value, position: f"{value:g}")
    axis.set_major_formatter(shown)
    axis.set_minor_formatter(shown if high < 10 * low else NullFormatter())


def legend(axes: Axes, *, least: int = 2) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) >= least:
        fitting = max(1, LEGEND_WIDTH // (max(map(len, labels)) + LEGEND_HANDLE))
        axes.figure.legend(handles, labels, loc="outside lower left", ncols=min(3, len(handles), fitting))


def _headline(study: Study, arms: Sequence[ArmSummary]) -> Callable[[Axes], None]:
    colours = arm_colours(study)

    def draw(axes: Axes) -> None:
        axes.set_title("Held-out success, last evaluation, 95% intervals")
        for place, arm in enumerate(reversed(arms)):
            colour, _ = colours[arm.arm]
            for k, offset, marker, fill in ((KS[0], 0.14, "o", colour), (KS[1], -0.14, "s", "none")):
                found = arm.passes[k]
                if found is None or math.isnan(found.value):
                    continue
                errors = [[max(0.0, found.value - found.low)], [max(0.0, found.high - found.value)]]
                axes.errorbar(found.value, place + offset, xerr=errors, fmt=marker, color=colour, mfc=fill, capsize=2)
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

    return draw


Series = dict[str, dict[int, dict[int, float]]]
"""arm -> seed -> iteration -> value."""


def metric_series(study: Study, metric: str) -> Series:
    """A column of the train rows; iterations without a value are left out."""
    return series_of(study.of_usable(study.metrics), metric)


def series_of(rows: pd.DataFrame, metric: str) -> Series:
    """A column of a frame with arm, seed and iteration; what is not finite is left out."""
    series: Series = {}
    if metric not in rows:
        return series
    columns = (rows[name].tolist() for name in ("arm", "seed", "iteration", metric))
    for arm, seed, iteration, value in zip(*columns, strict=True):
        if math.isfinite(value):
            series.setdefault(arm, {}).setdefault(seed, {})[iteration] = value
    return series


def evaluation_series(study: Study, k: int) -> Series:
    """Mean held-out pass@k over the tasks that have k valid samples, of each evaluation."""
    rows = heldout(study)
    values: dict[tuple[str, int, int], list[float]] = {}
    columns = (rows[name].tolist() for name in ("arm", "seed", "iteration", "samples", "successes"))
    for arm, seed, iteration, samples, successes in zip(*columns, strict=True):
        if samples >= k:
            values.setdefault((arm, seed, iteration), []).append(pass_at_k(samples, successes, k))
    series: Series = {}
    for (arm, seed, iteration), found in values.items():
        series.setdefault(arm, {}).setdefault(seed, {})[iteration] = sum(found) / len(found)
    return series


def with_band(text: str, series: Series) -> str:
    """A caption for `curves`; it tells of the band where an arm has one."""
    several = any(len(seeds) > 1 for seeds in series.values())
    return f"{text}; the band spans the seeds." if several else f"{text}."


def curves(
    study: Study, series: Series, title: str, label: str, *, share: bool, log: bool = False
) -> Callable[[Axes], None]:
    """Mean over seeds where all seeds have a value, in a band from the lowest to the highest seed."""
    colours = arm_colours(study)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.set_title(title)
        for arm in study.arms:
            seeds = list(series.get(arm, {}).values())
            if not seeds:
                continue
            iterations = sorted(set.intersection(*(set(values) for values in seeds)))
            values_SI = np.array([[values[iteration] for iteration in iterations] for values in seeds])
            colour, style = colours[arm]
            axes.plot(iterations, values_SI.mean(axis=0), color=colour, linestyle=style, linewidth=1.8, label=arm)
            if len(seeds) > 1:
                low, high = values_SI.min(axis=0), values_SI.max(axis=0)
                axes.fill_between(iterations, low, high, color=colour, alpha=0.18, linewidth=0)
        if share:
            axes.set_ylim(-0.02, 1.02)
        if log:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("RL iteration")
        axes.set_ylabel(label)
        legend(axes)

    return draw


def _funnel(arms: Sequence[ArmSummary]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title("Interventions by outcome, share of attempts")
        known = [arm for arm in reversed(arms) if arm.attempts > 0]
        seen = [name for name in OUTCOMES if any(arm.outcomes[name] > 0 for arm in known)]
        # Accepted comes first, in a colour of its own; the losses follow in pipeline order.
        ordered = sorted(seen, key=lambda name: (name != "accepted", OUTCOMES.index(name)))
        left = np.zeros(len(known))
        for name in ordered:
            place = OUTCOMES.index(name)
            colour = ACCEPTED if name == "accepted" else LOSSES[place % len(LOSSES)]
            hatch = "///" if len(LOSSES) <= place and name != "accepted" else None
            widths = np.array([arm.outcomes[name] / arm.attempts for arm in known])
            axes.barh(
                range(len(known)),
                widths,
                left=left,
                height=0.6,
                color=colour,
                edgecolor=PAPER,
                linewidth=0.8,
                hatch=hatch,
                label=name.replace("_", " "),
            )
            left += widths
        axes.set_yticks(range(len(known)), [f"{arm.arm}\n{arm.attempts:.0f} attempts" for arm in known])
        axes.set_xlim(0, 1)
        axes.grid(axis="y", visible=False)
        legend(axes, least=1)

    return draw


def perplexities(study: Study) -> dict[str, list[float]]:
    """Recorded perplexities of corrections by source."""
    rows = study.of_usable(study.interventions)
    found: dict[str, list[float]] = {}
    for source, value in zip(rows["source"].tolist(), rows["perplexity"].tolist(), strict=True):
        if value >= 1 and math.isfinite(value):
            found.setdefault(plain_text(source), []).append(value)
    return found


def gates(study: Study) -> list[float]:
    """The finite deltas >= 1 of the usable runs."""
    deltas = set(study.usable_runs["delta"].tolist())
    return sorted(delta for delta in deltas if math.isfinite(delta) and delta >= 1)


def _perplexity_histogram(study: Study) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title("Perplexity of corrections under the rollout prompt")
        found = perplexities(study)
        top = max(max(map(max, found.values())), *gates(study), 10.0)
        bins = np.geomspace(1, top * 1.05, 36).tolist()
        for place, source in enumerate(sorted(found)):
            axes.hist(found[source], bins=bins, color=COLOURS[place % len(COLOURS)], alpha=0.6, label=source)
        axes.set_xscale("log")
        ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 1000, 10_000) if tick <= top * 1.05]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        for delta in gates(study):
            axes.axvline(delta, color=INK, linewidth=1.2, linestyle="--")
            axes.annotate(
                f"gate {delta:g}",
                (delta, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=8,
            )
        axes.set_xlabel("perplexity (log scale)")
        axes.set_ylabel("corrections")
        legend(axes)

    return draw


def _rho_histogram(values: NDArray[np.float32]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title("Weight of corrected tokens, after clipping")
        axes.hist(values, bins=40, color=COLOURS[0])
        axes.axvline(1, color=INK, linewidth=1.2, linestyle="--")
        axes.set_xlabel("rho")
        axes.set_ylabel("tokens")

    return draw


def _compute(arms: Sequence[ArmSummary]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
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

    return draw


CURVES = (
    ("training_reward", "reward/mean", "Reward while training", "mean reward"),
    ("pass_before", "pass@G/before", "Groups with a success before intervention", "share of groups"),
    ("all_failed", "groups/all_failed", "Groups that failed as a whole", "share of groups"),
    ("accepted_perplexity", "correction/accepted_perplexity_mean", "Perplexity of accepted corrections", "mean"),
)


def charts(study: Study, summary: Summary) -> list[Chart]:
    """The charts that there is data for."""
    arms = [arm for arm in summary.arms if arm.seeds]
    rows = 1.6 + 0.42 * len(arms)
    found: list[Chart] = []
    if any(arm.passes[KS[0]] is not None for arm in arms):
        caption = "Held-out pass@1 and pass@8 by arm, with 95% intervals, against the base."
        found.append(Chart(name="headline", caption=caption, draw=_headline(study, arms), height=max(SIZE[1], rows)))
    for k in KS:
        series = evaluation_series(study, k)
        if series:
            draw = curves(study, series, f"Held-out pass@{k}", f"pass@{k}", share=True)
            caption = with_band(f"Held-out pass@{k} over training", series)
            found.append(Chart(name=f"heldout_pass_{k}", caption=caption, draw=draw))
    for name, metric, title, label in CURVES:
        series = metric_series(study, metric)
        if series:
            share = label == "share of groups"
            draw = curves(study, series, title, label, share=share)
            found.append(Chart(name=name, caption=with_band(f"{title} ({metric})", series), draw=draw))
    if any(arm.attempts > 0 for arm in arms):
        caption = "What became of the interventions of each arm."
        found.append(Chart(name="funnel", caption=caption, draw=_funnel(arms), height=max(SIZE[1], rows + 0.9)))
    if perplexities(study):
        caption = "Perplexity of all recorded corrections, by source; dashed: the gates of the arms."
        found.append(Chart(name="perplexity", caption=caption, draw=_perplexity_histogram(study)))
    weights = np.concatenate([np.empty(0, np.float32), *study.of_usable(study.interventions)["rho_T"].tolist()])
    if len(weights):
        caption = f"rho of corrected tokens ({len(weights)} recorded)."
        found.append(Chart(name="rho", caption=caption, draw=_rho_histogram(weights)))
    if arms and all(math.isfinite(value) for arm in arms for value in arm.compute.values()):
        caption = "Tokens that a finished run generated, scored and trained on."
        found.append(Chart(name="compute", caption=caption, draw=_compute(arms), height=max(SIZE[1], rows + 0.4)))
    return found
