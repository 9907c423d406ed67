"""The article's table beside what a user has measured: on the terminal, as Markdown and as one HTML page."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from importlib import resources

from rti_exp.analysis.benchmarks import COLUMNS, Measured, Unreadable
from rti_exp.analysis.cells import NONE, Sheet
from rti_exp.analysis.html import as_table, fill

TITLE = "The article's table and yours"
ARTICLE: tuple[tuple[str, tuple[float, float, float, float, float]], ...] = (
    ("Qwen3-8B (base)", (22.67, 14.17, 57.02, 35.53, 16.00)),
    ("GRPO", (35.33, 35.33, 55.48, 50.22, 24.38)),
    ("LUFFY (teacher trajectories)", (36.00, 36.00, 72.59, 49.34, 32.81)),
    ("RTI", (57.33, 61.33, 81.14, 55.92, 50.00)),
    ("Qwen3-235B-A22B (reference)", (28.00, 16.67, 64.04, 47.15, 32.00)),
    ("GPT-4.1 (reference)", (23.33, 18.67, 58.99, 52.19, 34.00)),
)
"""Pass@1 in %, as a public summary of arXiv 2610.13438 gives it: to be shown, never to be computed with or tested
against."""
OF_THE_ARTICLE = "article"
NOTES = (
    "Pass@1 in %. Rows of the article are its own figures, as its public summary gives them, without intervals; the "
    "summary's text disagrees with its table in places (Claw-Eval GRPO 22.5, τ²-Telecom RTI 61.4).",
    "Yours have a 95% interval over tasks, and over seeds where there are several. They are no replication: model, "
    "user, judge, split and tasks differ as the next table says, and the article's own settings are mostly not known.",
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
{{style}}
</head>
<body><main><h1>{{title}}</h1>
{{tables}}
</main></body>
</html>
"""


def sheets(found: Sequence[Measured], bad: Sequence[Unreadable] = ()) -> list[Sheet]:
    """The article's columns; what each of the user's figures is; other benchmarks; what could not be read."""
    own = [one for one in found if one.place.column is not None]
    others = [one for one in found if one.place.column is None]
    made = [_comparison(own)]
    if own:
        made.append(_details("Your figures in these columns", own))
    if others:
        made.append(_details("Benchmarks that the article does not have", others))
    if bad:
        rows = tuple((str(one.source), one.why) for one in bad)
        made.append(Sheet(title="Left out", columns=("folder", "why"), rows=rows, labels=2))
    return made


def _comparison(own: Sequence[Measured]) -> Sheet:
    rows = [(name, OF_THE_ARTICLE, *(f"{value:.2f}" for value in values)) for name, values in ARTICLE]
    rows += [
        (line[0].who, "yours", *(_percent(cells.get(column)) for column in COLUMNS))
        for line in _lines(own)
        for cells in [{one.place.column: one for one in line}]
    ]
    notes = NOTES if own else (*NOTES, "Nothing of yours is in these columns yet: docs/benchmarks.md has the commands.")
    return Sheet(
        title="Pass@1, %",
        columns=("method or model", "whose", *COLUMNS),
        rows=tuple(rows),
        labels=2,
        notes=notes,
        may_shorten=True,
    )


def _lines(own: Sequence[Measured]) -> list[list[Measured]]:
    """Figures of one policy in one line; a second figure of a column begins another line."""
    lines: list[list[Measured]] = []
    for one in own:
        for line in lines:
            taken = {other.place.column for other in line}
            if line[0].identity == one.identity and one.place.column not in taken:
                line.append(one)
                break
        else:
            lines.append([one])
    return lines


def _percent(one: Measured | None) -> str:
    """`61.3 [50.0, 72.1]`."""
    if one is None or math.isnan(one.value):
        return NONE
    return f"{100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]"


def _details(title: str, found: Sequence[Measured]) -> Sheet:
    rows = [
        (
            one.who,
            one.place.benchmark,
            "; ".join(one.place.differs),
            str(one.source),
            _percent(one),
            str(one.tasks),
            str(one.trials),
            NONE if one.lost is None else str(one.lost),
        )
        for one in found
    ]
    return Sheet(
        title=title,
        columns=("model", "benchmark", "how it was measured", "folder", "pass@1, %", "tasks", "trials", "lost"),
        rows=tuple(rows),
        labels=4,
        notes=("lost: rollouts that the infrastructure lost; they are in no mean.",),
    )


def as_html(found: Sequence[Sheet]) -> str:
    """One page that loads nothing and runs nothing; all text in it is escaped."""
    report = resources.files("rti_exp.analysis").joinpath("report.html.in").read_text(encoding="utf-8")
    style = re.search(r"<style>.*?</style>", report, flags=re.DOTALL)
    if style is None:
        raise ValueError("report.html.in holds no style")
    tables = "\n".join(as_table(sheet) for sheet in found)
    return fill(PAGE, {"title": html.escape(TITLE), "style": style[0], "tables": tables})
