"""The paper's results table alongside a user's scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rti_exp.analysis.benchmark_scores import COLUMNS, Score, Unreadable
from rti_exp.analysis.html_rendering import page
from rti_exp.analysis.table_rendering import EMPTY, Table

TITLE = "The paper's table and yours"
PAPER_ROWS: tuple[tuple[str, tuple[float, float, float, float, float]], ...] = (
    ("Qwen3-8B (base)", (22.67, 14.17, 57.02, 35.53, 16.00)),
    ("GRPO", (35.33, 35.33, 55.48, 50.22, 24.38)),
    ("LUFFY (teacher trajectories)", (36.00, 36.00, 72.59, 49.34, 32.81)),
    ("RTI", (57.33, 61.33, 81.14, 55.92, 50.00)),
    ("Qwen3-235B-A22B (reference)", (28.00, 16.67, 64.04, 47.15, 32.00)),
    ("GPT-4.1 (reference)", (23.33, 18.67, 58.99, 52.19, 34.00)),
)
"""Pass@1 in %, from a public summary of arXiv 2610.13438. For display only: never compute with or test against it."""
NOTES = (
    "Pass@1 in %. The paper's rows are its own figures, as its public summary gives them, without intervals. The "
    "summary's text disagrees with its table in places (Claw-Eval GRPO 22.5, τ²-Telecom RTI 61.4).",
    "Yours have a 95% interval over tasks, and over seeds if there are several. They are not a replication: model, "
    "user, judge, split and tasks differ as the next table says, and most of the paper's settings are not known.",
)


def paper_tables(scores: Sequence[Score], unreadable: Sequence[Unreadable] = ()) -> list[Table]:
    """The comparison, the details of the user's scores, other benchmarks, and unreadable folders."""
    compared = [score for score in scores if score.benchmark.column is not None]
    others = [score for score in scores if score.benchmark.column is None]
    tables = [_comparison(compared)]
    if compared:
        tables.append(_details("Your scores in these columns", compared))
    if others:
        tables.append(_details("Benchmarks that are not in the paper", others))
    if unreadable:
        rows = tuple((str(item.source), item.reason) for item in unreadable)
        tables.append(Table(title="Left out", columns=("folder", "reason"), rows=rows, labels=2))
    return tables


def _comparison(scores: Sequence[Score]) -> Table:
    rows = [(name, "paper", *(f"{value:.2f}" for value in values)) for name, values in PAPER_ROWS]
    for line in _lines(scores):
        cells = {score.benchmark.column: _percent(score) for score in line}
        rows.append((line[0].model, "yours", *(cells.get(column, EMPTY) for column in COLUMNS)))
    hint = () if scores else ("You have no score in these columns yet: see docs/benchmarks.md for the commands.",)
    return Table(
        title="Pass@1, %",
        columns=("method or model", "source", *COLUMNS),
        rows=tuple(rows),
        labels=2,
        notes=(*NOTES, *hint),
        may_shorten=True,
    )


def _lines(scores: Sequence[Score]) -> list[list[Score]]:
    """One line per policy; a second score in the same column starts another line."""
    lines: list[list[Score]] = []
    for score in scores:
        for line in lines:
            taken = {earlier.benchmark.column for earlier in line}
            if line[0].identity == score.identity and score.benchmark.column not in taken:
                line.append(score)
                break
        else:
            lines.append([score])
    return lines


def _percent(score: Score) -> str:
    """`61.3 [50.0, 72.1]`."""
    if math.isnan(score.value):
        return EMPTY
    return f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _details(title: str, scores: Sequence[Score]) -> Table:
    rows = [
        (
            score.model,
            score.benchmark.name,
            "; ".join(score.benchmark.differences),
            str(score.source),
            _percent(score),
            str(score.tasks),
            str(score.trials),
            EMPTY if score.lost is None else str(score.lost),
        )
        for score in scores
    ]
    return Table(
        title=title,
        columns=("model", "benchmark", "evaluation", "folder", "pass@1, %", "tasks", "trials", "lost"),
        rows=tuple(rows),
        labels=4,
        notes=("lost: rollouts lost to the infrastructure; they are in no mean.",),
    )


def as_html(tables: Sequence[Table]) -> str:
    """One page that loads nothing and runs nothing; all text in it is escaped."""
    return page("page.html", title=TITLE, tables=tables)
