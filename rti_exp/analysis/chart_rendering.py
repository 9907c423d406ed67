"""Draws charts into files or into a page. matplotlib is imported only to draw, and never as pyplot."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#1f2124"
PAPER = "#ffffff"
SIZE = (4.8, 3.1)
COLOURS = ("#2a78d6", "#eb6834", "#1baf7a", "#c98500", "#d55181", "#008300", "#7a6ae0", "#e34948")
"""Used in this order, never by rank. Distinct for colour-blind readers, and legible on white and on black."""
GREY = "#8b8f96"
LINE_STYLES = ("-", "--", ":")
LEGEND_WIDTH, LEGEND_HANDLE = 90, 10
"""Characters that fit on one legend line, and the characters that a line sample takes."""

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of one panel, so that it fits on a phone. `name` is the file name."""

    name: str
    caption: str
    draw: Callable[[Axes], None]
    height: float = SIZE[1]


class NoFigures(Exception):
    """matplotlib is not installed."""


@contextmanager
def _drawn(chart: Chart) -> Iterator[Figure]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoFigures("charts need matplotlib: pip install matplotlib") from error
    # The salt makes the ids of an SVG reproducible, and different between charts.
    with mpl.rc_context({**STYLE, "svg.hashsalt": chart.name}):
        figure = Figure(figsize=(SIZE[0], chart.height))
        chart.draw(figure.add_subplot())
        yield figure


def legend(axes: Axes, *, least: int = 2) -> None:
    """A legend below the axes if there are at least `least` entries."""
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) >= least:
        fitting = max(1, LEGEND_WIDTH // (max(map(len, labels)) + LEGEND_HANDLE))
        axes.figure.legend(handles, labels, loc="outside lower left", ncols=min(3, len(handles), fitting))


def plain_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis. matplotlib's own labels are mathematical text, which is off here."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    low, high = axis.get_view_interval()
    formatter = FuncFormatter(lambda value, position: f"{value:g}")
    axis.set_major_formatter(formatter)
    axis.set_minor_formatter(formatter if high < 10 * low else NullFormatter())


def save(chart: Chart, directory: Path) -> list[Path]:
    """Writes the chart as PNG and as SVG, on white."""
    paths = [directory / f"{chart.name}.png", directory / f"{chart.name}.svg"]
    with _drawn(chart) as figure:
        figure.savefig(paths[0], dpi=160, facecolor=PAPER)
        figure.savefig(paths[1], facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return paths


def inline_svg(chart: Chart) -> str:
    """The chart as an <svg> element, in the page's colours, with ids prefixed by its name."""
    buffer = io.StringIO()
    with _drawn(chart) as figure:
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{chart.name}-", text)
    return text.replace(INK, "currentColor").replace(PAPER, "var(--paper)").strip()
