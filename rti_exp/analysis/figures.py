"""Draws a chart into files, or into a page. matplotlib is imported only to draw, and never as pyplot."""

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
    from matplotlib.figure import Figure

INK = "#1f2124"
PAPER = "#ffffff"
SIZE = (4.8, 3.1)

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
    "grid.color": "#8b8f96",
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
    """One panel, so that a phone can show it: its file name, what it says in words, and how it is drawn."""

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
    # The salt makes the ids of an SVG the same each time, and different between charts.
    with mpl.rc_context({**STYLE, "svg.hashsalt": chart.name}):
        figure = Figure(figsize=(SIZE[0], chart.height))
        chart.draw(figure.add_subplot())
        yield figure


def save(chart: Chart, directory: Path) -> list[Path]:
    """Writes the chart as PNG and as SVG, on white."""
    paths = [directory / f"{chart.name}.png", directory / f"{chart.name}.svg"]
    with _drawn(chart) as figure:
        figure.savefig(paths[0], dpi=160, facecolor=PAPER)
        figure.savefig(paths[1], facecolor=PAPER, metadata={"Date": None, "Creator": None})
    return paths


def inline_svg(chart: Chart) -> str:
    """The chart as an <svg> element for a page: in the page's colours, its ids prefixed by its name."""
    buffer = io.StringIO()
    with _drawn(chart) as figure:
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{chart.name}-", text)
    return text.replace(INK, "currentColor").replace(PAPER, "var(--paper)").strip()
