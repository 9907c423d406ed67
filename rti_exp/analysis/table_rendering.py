"""Tables of text cells: number formats, and rendering for a terminal and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rti_exp.analysis.statistics import Difference, Estimate
from rti_exp.analysis.text import plain_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult

EMPTY = "-"
NO_ROWS = "No runs yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of text. The first `labels` columns contain names, the others numbers.

    may_shorten: a terminal that is too narrow may leave the intervals out.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    notes: tuple[str, ...] = ()
    may_shorten: bool = False


def show_interval(estimate: Estimate | Difference | None, *, signed: bool = False) -> str:
    """`0.375 [0.250, 0.500]`."""
    if estimate is None or math.isnan(estimate.value):
        return EMPTY
    form = "+.3f" if signed else ".3f"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def show_ratio(difference: Difference | None) -> str:
    """A difference of logarithms as a ratio: `0.50 [0.40, 0.62]`."""
    if difference is None or math.isnan(difference.value):
        return EMPTY
    return f"{math.exp(difference.value):.2f} [{math.exp(difference.low):.2f}, {math.exp(difference.high):.2f}]"


def show_count(value: float) -> str:
    """`950`, `12.3k`, `4.56M`."""
    if math.isnan(value):
        return EMPTY
    for least, unit, size in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3)):
        if abs(value) >= least:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"


class _TerminalTable:
    """A table for rich that breaks no word of a cell if the terminal is wide enough."""

    def __init__(self, table: Table, file: str) -> None:
        self.table = table
        self.file = file

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        labels = self.table.labels
        # Without the blank, an interval that has to wrap stays in one piece.
        rows = [
            [plain_text(cell if i < labels else cell.replace(", ", ",")) for i, cell in enumerate(row)]
            for row in self.table.rows
        ]
        widths = self._widths(rows, options.max_width)
        shortened = widths is None and self.table.may_shorten
        if shortened:
            rows = [[*row[:labels], *(cell.partition(" [")[0] for cell in row[labels:])] for row in rows]
            widths = self._widths(rows, options.max_width)
        title = Text(plain_text(self.table.title))
        shown = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for i, column in enumerate(self.table.columns):
            justify, width = "left" if i < labels else "right", widths[i] if widths else None
            shown.add_column(Text(plain_text(column)), justify=justify, overflow="fold", width=width)
        for row in rows:
            shown.add_row(*map(Text, row))
        yield shown
        if shortened:
            yield Text(f"The intervals are in {self.file}; this terminal is too narrow for them.", style="dim")

    def _widths(self, rows: Sequence[Sequence[str]], available: int) -> list[int] | None:
        """Each column's longest word, plus the spare width from left to right; None if the words do not fit."""
        texts = [[column, *(row[i] for row in rows)] for i, column in enumerate(self.table.columns)]
        widths = [max(len(word) for text in column for word in text.split()) for column in texts]
        # Words of the last label column (messages, run states) may be broken.
        widths[self.table.labels - 1] = min(widths[self.table.labels - 1], 16)
        spare = available - sum(widths) - 2 * len(widths)
        if spare < 0:
            return None
        for i, column in enumerate(texts):
            more = min(spare, max(map(len, column)) - widths[i])
            widths[i] += more
            spare -= more
        return widths


def as_rich(title: str, tables: Sequence[Table], *, file: str = "results.md") -> Group:
    """Tables for a terminal. `file` is the file with the full tables. No text is interpreted as markup."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(plain_text(title), style="bold")]
    for table in tables:
        parts.append(_TerminalTable(table, file))
        if not table.rows:
            parts.append(Text(NO_ROWS))
        parts += [Text(plain_text(note), style="dim") for note in table.notes]
        parts.append(Text(""))
    return Group(*parts)


MARKDOWN = {ord(char): f"\\{char}" for char in "\\`*_{}[]#|~!$"} | {ord(char): f"&#{ord(char)};" for char in "<>&"}


def _escape(text: str) -> str:
    return plain_text(text).translate(MARKDOWN)


def table_as_markdown(table: Table) -> str:
    lines = [f"## {_escape(table.title)}", ""]
    lines.append("| " + " | ".join(map(_escape, table.columns)) + " |")
    lines.append("|" + "|".join("---" if i < table.labels else "--:" for i in range(len(table.columns))) + "|")
    lines += ["| " + " | ".join(map(_escape, row)) + " |" for row in table.rows]
    paragraphs = ([] if table.rows else [NO_ROWS]) + [_escape(note) for note in table.notes]
    return "\n\n".join(["\n".join(lines), *paragraphs])


def as_markdown(title: str, tables: Sequence[Table]) -> str:
    return "\n\n".join([f"# {_escape(title)}", *map(table_as_markdown, tables)]) + "\n"
