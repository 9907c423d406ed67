"""HTML of tables, charts and pages, from the templates. All text is escaped, and pages load nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rti_exp.analysis.chart_rendering import Chart, NoFigures, inline_svg
from rti_exp.analysis.table_rendering import NO_ROWS, Table
from rti_exp.analysis.text import plain_text


def _number_text(text: str) -> str:
    """An interval that breaks before its bracket only."""
    return plain_text(text).replace(", ", ",\u00a0")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rti_exp.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain_text, "number": _number_text, "repr": repr}
    environment.globals["no_rows"] = NO_ROWS
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


ENVIRONMENT = _environment()


def source(name: str) -> Markup:
    """The text of a style sheet or script in templates/."""
    return Markup(resources.files("rti_exp.analysis").joinpath("templates", name).read_text(encoding="utf-8"))


def part(name: str, *arguments: Any) -> Markup:
    """The HTML of a macro of parts.html."""
    return getattr(ENVIRONMENT.get_template("parts.html").module, name)(*arguments)


def page(template: str, **values: Any) -> str:
    parts = ENVIRONMENT.get_template("parts.html").module
    return ENVIRONMENT.get_template(template).render(parts=parts, style=source("style.css"), **values)


def table_html(table: Table) -> Markup:
    return part("table", table)


def charts_html(charts: Sequence[Chart]) -> Markup:
    try:
        return part("charts", [(chart.caption, Markup(inline_svg(chart))) for chart in charts], "no finished run")
    except NoFigures as error:
        return part("charts", [], str(error))
