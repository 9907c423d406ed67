"""Tables, charts and single interventions as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from rti_exp.analysis.arm_summary import Summary
from rti_exp.analysis.chart_rendering import Chart
from rti_exp.analysis.html_rendering import charts_html, part, table_html
from rti_exp.analysis.intervention_browser import entry, run_states
from rti_exp.analysis.run_files import read_record
from rti_exp.analysis.study import Study, records, select
from rti_exp.analysis.study_charts import study_charts
from rti_exp.analysis.study_tables import study_tables
from rti_exp.analysis.table_rendering import Table


class Fragment(Markup):
    """HTML that a notebook shows."""

    def _repr_html_(self) -> str:
        return str(self)


def show(*items: Table | Chart) -> Fragment:
    """Tables and charts in this order."""
    parts = [charts_html([item]) if isinstance(item, Chart) else table_html(item) for item in items]
    return Fragment("\n".join(parts) or "<p class=note>Nothing to show: no finished run has data for it.</p>")


def show_tables(study: Study, summary: Summary) -> Fragment:
    """All tables of a study."""
    return show(*study_tables(study, summary))


def show_charts(study: Study, summary: Summary, names: Sequence[str]) -> Fragment:
    """The charts with these names for which there is data."""
    return Fragment(charts_html([chart for chart in study_charts(study, summary) if chart.name in names]))


def show_interventions(study: Study, *, most: int = 3, **values: Any) -> Fragment:
    """Up to `most` interventions that have the given value in each named column, spread evenly over all that match.

    Columns are those of `study.interventions`: arm, seed, outcome, family, source, iteration.
    """
    rows = records(select(study.interventions, **values))
    states = run_states(study)
    count = min(most, len(rows))
    chosen = [rows[place * len(rows) // count] for place in range(count)]
    cards = [part("intervention", entry(row, read_record(row), states[row["run_key"]])) for row in chosen]
    return Fragment(f"<p>{count} of {len(rows)} interventions.</p>" + "<hr>".join(cards))
