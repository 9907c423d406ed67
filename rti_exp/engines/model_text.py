"""The parts of a text that a model wrote: its thinking, its answer, the JSON of its tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

THINK, THINK_END = "<think>", "</think>"
UNENDED_THINKING = "The turn ended before its thinking did."
TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
_SPACE = re.compile(r"\s*")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL | re.IGNORECASE)
_DECODER = json.JSONDecoder(strict=False)


def split_thinking(text: str, *, tags: Collection[int] | None = None, opened: bool = False) -> tuple[str, str | None]:
    """The thinking in a turn, and the answer after it; the answer is None if the thinking did not end.

    The thinking ends at the first `</think>`, with or without a `<think>` before it: many chat templates write the
    opening tag themselves. A `</think>` inside the JSON of a tool call is text.

    Args:
        tags: the places in `text` at which a tag counts; None: wherever one is spelled.
        opened: whether the turn begins inside the thinking.
    """
    places = [(place, name) for place, name in tags_in(text, (THINK, THINK_END)) if tags is None or place in tags]
    start = next((place for place, name in places if name == THINK), None)
    end = next((place for place, name in places if name == THINK_END), None)
    if end is None:
        if start is not None and not text[:start].strip():
            return text[start + len(THINK) :].strip(), None
        return (text.strip(), None) if opened else ("", text)
    thinking = text[:end] if start is None or start > end else text[:start] + text[start + len(THINK) : end]
    return thinking.strip(), text[end + len(THINK_END) :].lstrip()


def tags_in(text: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Place and name of each tag in a turn, in order. What is spelled inside the JSON of a tool call is text."""
    pattern = re.compile("|".join(map(re.escape, {*names, TOOL_CALL, THINK_END})))
    place = json_end(text, 0) or 0
    while match := pattern.search(text, place):
        if match[0] in names:
            yield match.start(), match[0]
        place = json_end(text, match.end()) or match.end()


def json_end(text: str, place: int) -> int | None:
    """Where the JSON object ends that begins at `place`, after white space; None if there is none."""
    start = _SPACE.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]  (it always matches)
    if not text.startswith("{", start):
        return None
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def verdict_text(text: str) -> str:
    """A judge's answer without the thinking before it and the code fence around it.

    Empty if the thinking did not end.
    """
    _, answer = split_thinking(text)
    body = (answer or "").strip()
    fenced = _FENCE.fullmatch(body)
    return fenced[1] if fenced is not None else body
