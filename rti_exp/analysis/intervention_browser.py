"""Intervention records for the report: a sample, with bounded texts and word-wise differences, as strict JSON."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.analysis.run_files import number_or_nan, read_record
from rti_exp.analysis.study import Study, records

MAX_CHARACTERS = 6000
MAX_TOKENS = 1500
TEXTS = (
    *("id", "task_id", "family", "outcome", "reason", "evidence", "source", "state_hash"),
    *("task", "history", "after", "error"),
)


def text_of(value: Any) -> str:
    """Any JSON value as text of bounded length; None gives an empty text."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > MAX_CHARACTERS:
        return f"{text[:MAX_CHARACTERS]} [cut: {len(text) - MAX_CHARACTERS} more characters]"
    return text


def finite(value: Any) -> float | str | None:
    """A number for strict JSON: rounded, "inf" for infinity, None for any other value."""
    number = number_or_nan(value)
    if math.isnan(number):
        return None
    return float(f"{number:.4g}") if math.isfinite(number) else ("inf" if number > 0 else "-inf")


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
    """[[text or None, log-prob, pi_cal log-prob, rho], ...] of the correction; None for absent numbers."""
    names = ("tokens", "log_probs", "calibration_log_probs", "weights")
    texts, *streams = ([*value] if isinstance(value := record.get(name), list) else [] for name in names)
    length = min(MAX_TOKENS, len(streams[0]))
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
    """The content that the page shows of one record: texts, numbers and lists, whatever the record contains."""
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
        "answers": "\n".join(map(text_of, answers)) if isinstance(answers := record.get("answers"), list) else "",
        "difference": difference_of(original, correction) if correction else [["=", original]],
        "corrected": bool(correction),
        "checks": checks_of(record),
        "perplexity": finite(record.get("perplexity")),
        "child_reward": finite(record.get("child_reward")),
        "shadow": record.get("shadow") is True,
        "tokens": tokens_of(record),
    }


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """How many to take from groups of these sizes, at most `total` together: evenly, and all of the small groups."""
    taken = [0] * len(sizes)
    left = total
    open_groups = [place for place, size in enumerate(sizes) if size]
    while left > 0 and open_groups:
        each = max(1, left // len(open_groups))
        for place in open_groups:
            more = min(each, sizes[place] - taken[place], left)
            taken[place] += more
            left -= more
        open_groups = [place for place in open_groups if taken[place] < sizes[place]]
    return taken


def choose(study: Study, total: int) -> list[dict[str, Any]]:
    """At most `total` intervention rows, spread evenly over arm and outcome, and within these over time."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in records(study.interventions):
        groups.setdefault((row["arm"], row["outcome"]), []).append(row)
    chosen: list[dict[str, Any]] = []
    for rows, count in zip(groups.values(), shares([len(rows) for rows in groups.values()], total), strict=True):
        rows.sort(key=_iteration)
        chosen += [rows[place * len(rows) // count] for place in range(count)]
    place = {arm: position for position, arm in enumerate(study.arms)}
    chosen.sort(key=lambda row: (place.get(row["arm"], len(place)), _iteration(row), row["run_key"]))
    return chosen


def _iteration(row: Mapping[str, Any]) -> float:
    return -1.0 if math.isnan(row["iteration"]) else row["iteration"]


def run_states(study: Study) -> dict[str, str]:
    """run key -> state."""
    return dict(zip(study.runs["run_key"].tolist(), study.runs["state"].tolist(), strict=True))


def entries(study: Study, total: int) -> list[dict[str, Any]]:
    """The entries of at most `total` interventions."""
    states = run_states(study)
    return [entry(row, read_record(row), states[row["run_key"]]) for row in choose(study, total)]
