"""The report as one HTML file: tables, charts and an intervention browser.

The page's content security policy allows no request, and only the script of the template, by its hash. Text of models
is escaped in the template and inserted by `textContent` in the script.
"""

from __future__ import annotations

import base64
import hashlib

from rti_exp.analysis.arm_summary import Summary
from rti_exp.analysis.html_rendering import charts_html, page, source
from rti_exp.analysis.intervention_browser import entries
from rti_exp.analysis.study import Study
from rti_exp.analysis.study_charts import report_charts
from rti_exp.analysis.study_tables import study_tables

MAX_INTERVENTIONS = 600


def render_report(study: Study, summary: Summary, *, max_interventions: int = MAX_INTERVENTIONS) -> str:
    """The page. It says how many interventions there are, and embeds at most `max_interventions`."""
    script = source("intervention_browser.js")
    interventions = entries(study, max_interventions)
    return page(
        "report.html",
        title=study.title,
        tables=study_tables(study, summary),
        charts=charts_html(report_charts(study, summary)),
        shown=_shown(len(interventions), len(study.interventions)),
        interventions=interventions,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _shown(shown: int, recorded: int) -> str:
    if not recorded:
        return "No intervention was recorded."
    if shown == recorded:
        return f"All {recorded:,} recorded interventions."
    return f"{shown:,} of {recorded:,} recorded interventions, spread evenly over arms, outcomes and iterations."
