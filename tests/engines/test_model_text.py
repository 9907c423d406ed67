"""Thinking, tags and fenced verdicts in a model's text."""

from __future__ import annotations

import pytest

from rti_exp.engines.model_text import split_thinking, tags_in, verdict_text

CALL = '<tool_call>{"name": "say", "arguments": {"body": "a </think> b"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        ("27", "", "27"),
        ("<think>\nhm\n</think>\n\n27", "hm", "27"),
        ("hm, 5?\n</think>\n\n27", "hm, 5?", "27"),
        ("</think>27", "", "27"),
        ("a <think>hm</think> 27", "a hm", "27"),
        ("hm</think>so </think> it is", "hm", "so </think> it is"),
        ("<think>hm", "hm", None),
        ("27 <think>", "", "27 <think>"),
        (CALL, "", CALL),
        (f"hm</think>{CALL}", "hm", CALL),
        (f"<think>say {CALL}?</think>{CALL}", f"say {CALL}?", CALL),
        ('{"t": "</think>"}', "", '{"t": "</think>"}'),
        ('{"t": "</think>', '{"t": "', ""),
        ("<tool_call>{hm</think>27", "<tool_call>{hm", "27"),
    ],
)
def test_the_thinking_ends_at_the_first_closing_tag_outside_a_calls_json(
    text: str, thinking: str, answer: str | None
) -> None:
    assert split_thinking(text) == (thinking, answer)


def test_a_turn_may_begin_inside_its_thinking() -> None:
    assert split_thinking("hm</think>27", opened=True) == ("hm", "27")
    assert split_thinking("hm", opened=True) == ("hm", None)


def test_only_tags_at_the_given_places_count() -> None:
    text = "a </think> b </think> c"
    assert split_thinking(text, tags=[13]) == ("a </think> b", "c")
    assert split_thinking(text, tags=[]) == ("", text)
    assert split_thinking("<think>a", tags=[]) == ("", "<think>a")


def test_tags_inside_json_are_text() -> None:
    assert list(tags_in(f"hm</think>{CALL}", ("</think>", "</tool_call>"))) == [(2, "</think>"), (75, "</tool_call>")]


@pytest.mark.parametrize("text", ["<tool_call>{" * 3000, '<tool_call>{"a": ' * 3000, "{" * 100_000])
def test_broken_json_takes_no_long_time(text: str) -> None:
    assert split_thinking(text) == ("", text)


@pytest.mark.parametrize(
    "text",
    [
        '{"pass": true}',
        '```json\n{"pass": true}\n```',
        '```JSON {"pass": true} ```\n',
        '```\n{"pass": true}\n```',
        '<think>{"pass": false}</think>```json\n{"pass": true}\n```',
        'false?</think>\n{"pass": true}',
    ],
)
def test_a_verdict_stands_behind_its_thinking_and_in_a_fence(text: str) -> None:
    assert verdict_text(text) == '{"pass": true}'


def test_thinking_that_did_not_end_is_not_a_verdict() -> None:
    assert verdict_text('<think>{"pass": true}') == ""
