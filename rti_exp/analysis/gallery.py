"""All charts of a report: those of every study, and those that only some studies have something to show in."""

from __future__ import annotations

from rti_exp.analysis.charts import charts
from rti_exp.analysis.dynamics import probe_charts
from rti_exp.analysis.figures import Chart
from rti_exp.analysis.leaks import leak_charts, worth_telling
from rti_exp.analysis.reading import Study
from rti_exp.analysis.summary import Summary


def gallery(study: Study, summary: Summary) -> list[Chart]:
    """The study's charts, the fixed probe over all families and, where leaks are merged, three lines for each arm."""
    return [
        *charts(study, summary),
        *probe_charts(study)[:1],
        *(leak_charts(study) if worth_telling(study) else []),
    ]
