"""Intervention records made ready for the report: chosen, cut to size, compared, and safe to embed."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.analysis.interventions import number_or_nan, read_record
from rti_exp.analysis.reading import Study

MOST_CHARACTERS = 6000
MOST_TOKENS = 1500
TEXTS = (
    *("id", "task_id", "family", "outcome", "reason", "evidence", "source", "state_hash"),
    *("task", "history", "after"),
)


def text_of(value: Any) -> str:
    """Any JSON value as text of bounded length; None is empty."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > MOST_CHARACTERS:
        return f"{text[:MOST_CHARACTERS]} [cut: {len(text) - MOST_CHARACTERS} more characters]"
    return text


def finite(value: Any) -> float | str | None:
    """A number for strict JSON: rounded, "inf" as it is, None for what is no number."""
    found = number_or_nan(value)
    if math.isnan(found):
        return None
    return float(f"{found:.4g}") if math.isfinite(found) else ("inf" if found > 0 else "-inf")


def difference_of(before: str, after: str) -> list[list[str]]:
    """Word-wise difference as [["=" | "-" | "+", text], ...]; joined, "=" and "-" give `before`."""
    old, new = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (before, after))
    parts: list[list[str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(["=", "".join(old[a:b])])
            continue
        if b > a:
            parts.append(["-", "".join(old[a:b])])
        if d > c:
            parts.append(["+", "".join(new[c:d])])
    return parts


def tokens_of(record: Mapping[str, Any]) -> list[list[Any]]:
    """[[text or None, log-prob, pi_cal log-prob, rho], ...] of the correction; None where there is no number."""
    names = ("tokens", "log_probs", "calibration_log_probs", "weights")
    texts, *streams = ([*value] if isinstance(value := record.get(name), list) else [] for name in names)
    length = min(MOST_TOKENS, len(streams[0]))
    if len(texts) != len(streams[0]):
        texts = [None] * length
    numbers = [[finite(value) for value in stream] + [None] * length for stream in streams]
    return [
        [text if isinstance(text, str) else None, *(stream[place] for stream in numbers)]
        for place, text in enumerate(texts[:length])
    ]


def checks_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    checks = record.get("checks")
    return [
        {
            "name": text_of(check.get("name")),
            "judge": text_of(check.get("judge")),
            "passed": check.get("passed") if isinstance(check.get("passed"), bool) else None,
            "answer": text_of(check.get("answer")),
        }
        for check in (checks if isinstance(checks, list) else [])
        if isinstance(check, dict)
    ]


def entry(row: Mapping[str, Any], record: Mapping[str, Any], state: str) -> dict[str, Any]:
    """What the page shows of one record: texts, numbers and lists only, whatever the record held."""
    seed = row["seed"]
    original, correction = text_of(record.get("original")), text_of(record.get("correction"))
    return {
        "arm": row["arm"],
        "seed": None if seed is None or seed != seed else int(seed),
        "run": row["run_key"],
        "state": state,
        "iteration": finite(record.get("iteration")),
        "step": finite(record.get("step")),
        **{name: text_of(record.get(name)) for name in TEXTS},
        "error": text_of(record.get("error")),
        "answers": "\n".join(map(text_of, answers)) if isinstance(answers := record.get("answers"), list) else "",
        "difference": difference_of(original, correction) if correction else [["=", original]],
        "corrected": bool(correction),
        "checks": checks_of(record),
        "perplexity": finite(record.get("perplexity")),
        "child_reward": finite(record.get("child_reward")),
        "shadow": record.get("shadow") is True,
        "tokens": tokens_of(record),
    }


def shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many to take from groups of these sizes, at most `most` in all: evenly, small groups whole."""
    taken = [0] * len(sizes)
    left = most
    open_groups = [place for place, size in enumerate(sizes) if size]
    while left > 0 and open_groups:
        each = max(1, left // len(open_groups))
        for place in open_groups:
            more = min(each, sizes[place] - taken[place], left)
            taken[place] += more
            left -= more
        open_groups = [place for place in open_groups if taken[place] < sizes[place]]
    return taken


def choose(study: Study, most: int) -> list[dict[str, Any]]:
    """At most `most` intervention rows, spread evenly over arm and outcome, and within these over time."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in study.interventions.to_dict("records"):
        groups.setdefault((row["arm"], row["outcome"]), []).append({str(key): value for key, value in row.items()})
    chosen: list[dict[str, Any]] = []
    for rows, count in zip(groups.values(), shares([len(rows) for rows in groups.values()], most), strict=True):
        rows.sort(key=_when)
        chosen += [rows[place * len(rows) // count] for place in range(count)]
    place = {arm: position for position, arm in enumerate(study.arms)}
    chosen.sort(key=lambda row: (place.get(row["arm"], len(place)), _when(row), row["run_key"]))
    return chosen


def _when(row: Mapping[str, Any]) -> float:
    return -1.0 if math.isnan(row["iteration"]) else row["iteration"]


def entries(study: Study, most: int) -> list[dict[str, Any]]:
    states = dict(zip(study.runs["run_key"].tolist(), study.runs["state"].tolist(), strict=True))
    return [entry(row, recorded(row), states[row["run_key"]]) for row in choose(study, most)]


def recorded(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The whole record of an index row; its index and an error where the file cannot be read any more."""
    try:
        return read_record(row)
    except (OSError, ValueError) as error:  # a live run may have rewritten its file since it was indexed
        names = {name: row[name] for name in ("iteration", "outcome", "family", "source")}
        return {**names, "error": f"the record could not be read again ({type(error).__name__})"}


def embed(value: Any) -> str:
    """JSON for a <script type="application/json">: plain ASCII in which nothing can end the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
