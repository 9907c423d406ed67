"""A study as tables: on the terminal, as results.md and as results.csv, all from the same numbers."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.analysis.reading import COMPUTE, Study, load_study
from rti_exp.analysis.sheets import SHOWN_STATES, Sheet, is_absent, sheets
from rti_exp.analysis.statistics import Difference, Estimate
from rti_exp.analysis.summary import KS, OUTCOMES, ArmSummary, Summary, summarize
from rti_exp.analysis.text import plain_text
from rti_exp.runs import write_atomically

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderResult


class _TerminalSheet:
    """A sheet as a rich table that breaks no word of its cells if the terminal is wide enough for that."""

    def __init__(self, sheet: Sheet, file: str) -> None:
        self.sheet = sheet
        self.file = file
        # Without the blank an interval that has to wrap stays in one piece.
        self.rows = [
            [plain_text(cell if i < sheet.labels else cell.replace(", ", ",")) for i, cell in enumerate(row)]
            for row in sheet.rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        sheet = self.sheet
        title = Text(plain_text(sheet.title))
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        rows = self.rows
        widths = self._widths(rows, options.max_width)
        if widths is None and sheet.may_shorten:
            rows = [[*row[: sheet.labels], *(cell.partition(" [")[0] for cell in row[sheet.labels :])] for row in rows]
            widths = self._widths(rows, options.max_width)
        for i, column in enumerate(sheet.columns):
            justify = "left" if i < sheet.labels else "right"
            width = widths[i] if widths else None
            table.add_column(Text(plain_text(column)), justify=justify, overflow="fold", width=width)
        for row in rows:
            table.add_row(*map(Text, row))
        yield table
        if rows is not self.rows:
            yield Text(f"The intervals are in {self.file}; this terminal is too narrow for them.", style="dim")

    def _widths(self, rows: Sequence[Sequence[str]], available: int) -> list[int] | None:
        """The longest word of each column, and what is left over from the left on; None if it does not fit."""
        texts = [[column, *(row[i] for row in rows)] for i, column in enumerate(self.sheet.columns)]
        widths = [max(len(word) for text in column for word in text.split()) for column in texts]
        # Of the last label column (messages, run states) words may be broken.
        widths[self.sheet.labels - 1] = min(widths[self.sheet.labels - 1], 16)
        spare = available - sum(widths) - 2 * len(widths)
        if spare < 0:
            return None
        for i, column in enumerate(texts):
            more = min(spare, max(map(len, column)) - widths[i])
            widths[i] += more
            spare -= more
        return widths


def as_rich(title: str, found: Sequence[Sheet], *, file: str = "results.md") -> Group:
    """The sheets for a terminal; `file` has what does not fit. Text is shown as it is, none of it is read as markup."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(plain_text(title), style="bold")]
    for sheet in found:
        parts.append(_TerminalSheet(sheet, file))
        if not sheet.rows:
            parts.append(Text("No runs yet."))
        parts += [Text(plain_text(note), style="dim") for note in sheet.notes]
        parts.append(Text(""))
    return Group(*parts)


MARKDOWN = {ord(char): f"\\{char}" for char in "\\`*_{}[]#|~!$"} | {ord(char): f"&#{ord(char)};" for char in "<>&"}


def _markdown_cell(text: str) -> str:
    return plain_text(text).translate(MARKDOWN)


def as_markdown(title: str, found: Sequence[Sheet]) -> str:
    lines = [f"# {_markdown_cell(title)}", ""]
    for sheet in found:
        lines += [f"## {_markdown_cell(sheet.title)}", ""]
        lines.append("| " + " | ".join(_markdown_cell(column) for column in sheet.columns) + " |")
        lines.append("|" + "|".join("---" if i < sheet.labels else "--:" for i in range(len(sheet.columns))) + "|")
        lines += ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in sheet.rows]
        if not sheet.rows:
            lines += ["", "No runs yet."]
        lines += [line for note in sheet.notes for line in ("", _markdown_cell(note))]
        lines.append("")
    return "\n".join(lines)


def _csv_interval(name: str, found: Estimate | Difference | None) -> dict[str, float]:
    names = (name, f"{name}_low", f"{name}_high")
    if found is None:
        return dict.fromkeys(names, math.nan)
    return dict(zip(names, (found.value, found.low, found.high), strict=True))


def _csv_row(arm: ArmSummary, summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm.arm, **{f"runs_{state}": arm.states.get(state, 0) for state in SHOWN_STATES}}
    row["seeds"] = " ".join(str(seed) for seed in arm.seeds)
    row |= _csv_interval("base_pass@1", arm.base)
    differences = {item.arm: item for item in summary.differences}
    for k in KS:
        row |= _csv_interval(f"pass@{k}", arm.passes[k])
        row[f"pass@{k}_interquartile_mean"] = arm.iqm[k]
        gap = differences[arm.arm].passes[k] if arm.arm in differences else None
        row |= _csv_interval(f"pass@{k}_difference", gap)
        row[f"pass@{k}_difference_paired"] = "" if gap is None else gap.paired
    row["interventions"] = arm.attempts
    row |= {f"outcome_{name}": arm.outcomes[name] for name in OUTCOMES}
    return row | {f"{name}_mean": arm.compute[name] for name in COMPUTE}


def as_csv(summary: Summary) -> str:
    """One row per arm with unrounded numbers; empty where there is none. Interventions are sums over runs."""
    rows = [_csv_row(arm, summary) for arm in summary.arms]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(list(rows[0]) if rows else ["arm"])
    for row in rows:
        writer.writerow(["" if is_absent(value) else _csv_text(value) for value in row.values()])
    return file.getvalue()


def _csv_text(value: Any) -> Any:
    # A cell that starts like a formula would be run by a spreadsheet.
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "@") else value


def title_of(study: Study) -> str:
    plural = "" if len(study.runs) == 1 else "s"
    return f"Study {study.name}: {len(study.runs)} run{plural}, {len(study.usable_runs)} in the means"


def sweep_table(study_dir: str | Path) -> Group:
    """The tables of a study for a rich console. Raises StudyError if there is no such directory."""
    study = load_study(study_dir, interventions=False)
    return as_rich(title_of(study), sheets(study, summarize(study)))


def write_tables(study_dir: str | Path) -> list[Path]:
    """Writes results.md and results.csv into the study directory, each as a whole, and returns their paths."""
    study = load_study(study_dir, interventions=False)
    return write_summary(study, summarize(study), Path(study_dir))


def write_summary(study: Study, summary: Summary, directory: Path) -> list[Path]:
    """As `write_tables`, from numbers already computed, into any existing directory."""
    paths = [directory / "results.md", directory / "results.csv"]
    write_atomically(paths[0], as_markdown(title_of(study), sheets(study, summary)))
    write_atomically(paths[1], as_csv(summary))
    return paths
