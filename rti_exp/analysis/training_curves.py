"""Curves over RL iterations, one line per arm. Only usable runs are drawn; bands span the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rti_exp.analysis.arm_summary import heldout
from rti_exp.analysis.chart_rendering import COLOURS, LINE_STYLES, Chart, legend, plain_ticks
from rti_exp.analysis.study import Study
from rti_exp.objective.passk import pass_at_k

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = dict[str, dict[int, dict[int, float]]]
"""arm -> seed -> iteration -> value."""


def arm_colours(study: Study) -> dict[str, tuple[str, str]]:
    """Colour and line style of each arm, by its place in the study, so that all charts agree."""
    return {
        arm: (COLOURS[place % len(COLOURS)], LINE_STYLES[place // len(COLOURS) % len(LINE_STYLES)])
        for place, arm in enumerate(study.arms)
    }


def metric_series(study: Study, metric: str) -> Series:
    """A column of the train rows."""
    return series_of(study.of_usable(study.metrics), metric)


def series_of(rows: pd.DataFrame, metric: str) -> Series:
    """The finite values of a column of a frame with arm, seed and iteration."""
    series: Series = {}
    if metric not in rows:
        return series
    columns = (rows[name].tolist() for name in ("arm", "seed", "iteration", metric))
    for arm, seed, iteration, value in zip(*columns, strict=True):
        if math.isfinite(value):
            series.setdefault(arm, {}).setdefault(seed, {})[iteration] = value
    return series


def evaluation_series(study: Study, k: int) -> Series:
    """Mean held-out pass@k of each evaluation, over the tasks with at least k valid samples."""
    rows: Any = heldout(study)
    rows = rows[rows["samples"] >= k]
    counts = zip(rows["samples"].tolist(), rows["successes"].tolist(), strict=True)
    rows = rows.assign(value=[pass_at_k(samples, successes, k) for samples, successes in counts])
    return series_of(rows.groupby(["arm", "seed", "iteration"], as_index=False)["value"].mean(), "value")


def shared_iterations(seeds: Mapping[int, Mapping[int, float]]) -> list[int]:
    """The iterations at which all seeds have a value."""
    return sorted(set.intersection(*(set(values) for values in seeds.values()))) if seeds else []


def curve_chart(
    study: Study,
    name: str,
    series: Series,
    title: str,
    label: str,
    *,
    caption: str | None = None,
    share: bool = False,
    log: bool = False,
) -> Chart:
    """Mean over seeds where all seeds have a value, in a band from the lowest to the highest seed.

    Args:
        label: of the y-axis.
        caption: instead of the title.
        share: values are in [0, 1].
        log: logarithmic y-axis.
    """
    colours = arm_colours(study)

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        for arm in study.arms:
            seeds = series.get(arm, {})
            if not seeds:
                continue
            iterations = shared_iterations(seeds)
            values_SI = np.array([[values[iteration] for iteration in iterations] for values in seeds.values()])
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
        finish_iteration_axes(axes, label)

    several = any(len(seeds) > 1 for seeds in series.values())
    text = f"{caption or title}; the band spans the seeds." if several else f"{caption or title}."
    return Chart(name=name, caption=text, draw=draw)


def finish_iteration_axes(axes: Axes, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("RL iteration")
    axes.set_ylabel(label)
    legend(axes)
