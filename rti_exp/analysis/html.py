"""The report as one file: tables, charts and an intervention browser. It loads nothing and runs one script.

The page's content security policy allows no request at all, and of scripts only the template's own, by
its hash; model text reaches the page as text, through escaping here and `textContent` there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from rti_exp.analysis.browser import embed, entries
from rti_exp.analysis.charts import charts
from rti_exp.analysis.figures import Chart, NoFigures, inline_svg
from rti_exp.analysis.gallery import gallery
from rti_exp.analysis.reading import Study
from rti_exp.analysis.sheets import Sheet, sheets
from rti_exp.analysis.summary import Summary
from rti_exp.analysis.tables import title_of
from rti_exp.analysis.text import plain_text

MOST_INTERVENTIONS = 600


def fill(template: str, values: Mapping[str, str]) -> str:
    """Puts `values` in place of {{names}}; what is put in is not read again. Raises KeyError for a name without one."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _cell(text: str, tag: str, number: bool) -> str:
    escaped = html.escape(plain_text(text))
    if number:
        escaped = escaped.replace(", ", ",&nbsp;")
    return f"<{tag}{' class=number' if number else ''}>{escaped}</{tag}>"


def as_table(sheet: Sheet) -> str:
    head = "".join(_cell(column, "th", i >= sheet.labels) for i, column in enumerate(sheet.columns))
    rows = [
        "<tr>" + "".join(_cell(cell, "td", i >= sheet.labels) for i, cell in enumerate(row)) + "</tr>"
        for row in sheet.rows
    ]
    notes = "".join(f"<p class=note>{html.escape(plain_text(note))}</p>" for note in sheet.notes)
    body = "\n".join(rows) or f"<tr><td colspan={len(sheet.columns)}>No runs yet.</td></tr>"
    return (
        f"<section><h2>{html.escape(plain_text(sheet.title))}</h2><div class=scroll tabindex=0><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}</section>"
    )


def as_charts(found: Sequence[Chart]) -> str:
    try:
        drawn = [
            f'<figure aria-label="{html.escape(chart.caption)}">{inline_svg(chart)}'
            f"<figcaption>{html.escape(chart.caption)}</figcaption></figure>"
            for chart in found
        ]
    except NoFigures as error:
        return f"<p class=note>No charts: {html.escape(str(error))}.</p>"
    return f"<div class=charts>{''.join(drawn)}</div>" if drawn else "<p class=note>No charts: no finished run.</p>"


def _shown(shown: int, recorded: int) -> str:
    if not recorded:
        return "No intervention was recorded."
    if shown == recorded:
        return f"All {recorded:,} recorded interventions."
    return f"{shown:,} of {recorded:,} recorded interventions, spread evenly over arms, outcomes and iterations."


def render(study: Study, summary: Summary, *, most: int = MOST_INTERVENTIONS) -> str:
    """The page. `most` bounds how many interventions are embedded; the page says how many there are."""
    template = resources.files("rti_exp.analysis").joinpath("report.html.in").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, flags=re.DOTALL)
    if script is None:
        raise ValueError("report.html.in holds no script")
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    headline, *others = sheets(study, summary)
    found = entries(study, most)
    return fill(
        template,
        {
            "script_hash": f"'sha256-{digest}'",
            "title": html.escape(plain_text(title_of(study))),
            "headline": as_table(headline),
            "charts": as_charts(gallery(study, summary)),
            "tables": "\n".join(as_table(sheet) for sheet in others),
            "shown": html.escape(_shown(len(found), len(study.interventions))),
            "data": embed(found),
        },
    )


@dataclass(frozen=True)
class Fragment:
    """HTML that a notebook shows."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def show(*found: Sheet | Chart) -> Fragment:
    """Tables and charts in this order, for a notebook."""
    parts = [as_charts([one]) if isinstance(one, Chart) else as_table(one) for one in found]
    return Fragment("\n".join(parts) or "<p class=note>Nothing to show: no finished run has data for it.</p>")


def show_tables(study: Study, summary: Summary) -> Fragment:
    """All tables, for a notebook."""
    return Fragment("\n".join(as_table(sheet) for sheet in sheets(study, summary)))


def show_charts(study: Study, summary: Summary, names: Sequence[str]) -> Fragment:
    """The charts of these names that there is data for, for a notebook."""
    return Fragment(as_charts([chart for chart in charts(study, summary) if chart.name in names]))
