"""A table as text cells, and how numbers are written in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rti_exp.analysis.statistics import Difference, Estimate

NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table as text. The first `labels` columns are names, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    notes: tuple[str, ...] = ()
    may_shorten: bool = False
    """A terminal that is too narrow may leave the intervals out."""


def show_interval(found: Estimate | Difference | None, *, signed: bool = False) -> str:
    """`0.375 [0.250, 0.500]`."""
    if found is None or math.isnan(found.value):
        return NONE
    form = "+.3f" if signed else ".3f"
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def show_count(value: float) -> str:
    """`950`, `12.3k`, `4.56M`."""
    if math.isnan(value):
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (size if unit != 'k' else 1e3):.3g}{unit}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"


def show_ratio(found: Difference | None) -> str:
    """A difference of logarithms as the ratio that it is: `0.50 [0.40, 0.62]`."""
    if found is None or math.isnan(found.value):
        return NONE
    return f"{math.exp(found.value):.2f} [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
