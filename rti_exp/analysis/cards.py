"""Single interventions for a notebook: what failed, the step before and after, per-token numbers, what followed."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from rti_exp.analysis.browser import entry, recorded
from rti_exp.analysis.html import Fragment
from rti_exp.analysis.reading import Study, select

FACTS = (
    "arm",
    "seed",
    "run",
    "iteration",
    "task_id",
    "family",
    "step",
    "outcome",
    "source",
    "perplexity",
    "child_reward",
)
TEXTS = ("task", "evidence", "reason", "history", "after", "error")
MARKS = {"=": "span", "-": "del", "+": "ins"}


def show_interventions(study: Study, *, most: int = 3, **equal: Any) -> Fragment:
    """Up to `most` interventions, evenly over those found, in which each named column has the given value.

    Columns are those of `study.interventions`: arm, seed, outcome, family, source, iteration.
    """
    rows = [
        {str(key): value for key, value in row.items()}
        for row in select(study.interventions, **equal).to_dict("records")
    ]
    states = dict(zip(study.runs["run_key"].tolist(), study.runs["state"].tolist(), strict=True))
    count = min(most, len(rows))
    chosen = [rows[place * len(rows) // count] for place in range(count)]
    cards = [card(entry(row, recorded(row), states[row["run_key"]])) for row in chosen]
    return Fragment(f"<p>{count} of {len(rows)} interventions.</p>" + "<hr>".join(cards))


def card(shown: Mapping[str, Any]) -> str:
    """HTML of one intervention, as `rti_exp.analysis.browser.entry` prepares it; all text is escaped."""
    facts = "".join(
        f"<tr><th>{name}</th><td>{html.escape(str(shown[name]))}</td></tr>"
        for name in FACTS
        if shown[name] not in (None, "")
    )
    texts = "".join(
        f"<p><b>{name}</b></p><pre style='white-space:pre-wrap'>{html.escape(shown[name])}</pre>"
        for name in TEXTS
        if shown[name]
    )
    change = "".join(f"<{MARKS[kind]}>{html.escape(text)}</{MARKS[kind]}>" for kind, text in shown["difference"])
    checks = "".join(
        f"<li>{html.escape(check['name'])} ({html.escape(check['judge'])}): {_verdict(check['passed'])} "
        f"<code>{html.escape(check['answer'])}</code></li>"
        for check in shown["checks"]
    )
    return (
        f"<table>{facts}</table><p><b>the step, before and after</b></p>"
        f"<pre style='white-space:pre-wrap'>{change}</pre>"
        f"<p><b>checks</b></p><ul>{checks}</ul>{_tokens(shown['tokens'])}{texts}"
    )


def _verdict(passed: bool | None) -> str:
    return {True: "passed", False: "failed", None: "unreadable"}[passed]


def _tokens(tokens: list[list[Any]]) -> str:
    """A table of the correction's tokens: log-prob under the rollout prompt, under the request, and rho."""
    rows = "".join(
        f"<tr><td><code>{html.escape(repr(text) if text is not None else '')}</code></td>"
        + "".join(f"<td>{'' if value is None else html.escape(str(value))}</td>" for value in numbers)
        + "</tr>"
        for text, *numbers in tokens
    )
    head = "<tr><th>token</th><th>log-prob</th><th>log-prob, asked</th><th>rho</th></tr>"
    return f"<table>{head}{rows}</table>" if rows else ""
