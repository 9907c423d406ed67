"""The deterministic leak rule on planted leaks and on clean rewrites."""

import time

import pytest

from rti_exp.intervention.leak_rule import identifiers, known_text, leaked, message_text
from rti_exp.types import Author, Message, ToolCall, Turn

EVIDENCE = "refund order #W-4821 to card 7734; total is 1,250.50; the user must call run_speed_test; tell amy@shop.org"
KNOWN = "I bought something on 2024-05-12 and want my money back, order 17"


@pytest.mark.parametrize(
    ("correction", "found"),
    [
        ("I refund W-4821.", {"w4821"}),
        ("i refund w4821", {"w4821"}),
        ('{"name": "refund", "arguments": {"order": "#W-4821", "card": 7734}}', {"w4821", "7734"}),
        ("That makes 1250.5 dollars", {"1250.5"}),
        ("That makes 1,250.50.", {"1250.5"}),
        ("Please call run_speed_test", {"run_speed_test".replace("_", "")}),
        ("I write to AMY@shop.org", {"amyshoporg"}),
        ("\uff17\uff17\uff13\uff14", {"7734"}),
        ("Which order is it, and which card?", set()),
        ("You bought it on 2024-05-12, order 17?", set()),
        ("Please run a speed test", set()),
        ("W-48210 and 77345 and 12505 and 1250", set()),
        ("refund the order to the card; the user must call; total", set()),
        ("", set()),
    ],
)
def test_planted_leaks_are_found_and_clean_rewrites_pass(correction, found):
    assert leaked(EVIDENCE, KNOWN, correction) == found


def test_what_the_history_has_is_no_leak():
    assert leaked(EVIDENCE, KNOWN + " w4821 1250.50", "W-4821 costs 1,250.5") == frozenset()


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("17", {"17"}),
        ("007 7.0 7", {"7"}),
        ("1,234,567.80", {"1234567.8"}),
        ("a1,b2", {"a1", "b2"}),
        ("3,4", {"3", "4"}),
        ("10.0.0.1", {"10001"}),
        ("done.A1", {"a1", "donea1"}),
        ("well-known words, e.g. these", set()),
        ("0.0", {"0"}),
        ("_x_", set()),
        ("123456789012345678901234567890", {"123456789012345678901234567890"}),
    ],
)
def test_identifiers(text, forms):
    assert identifiers(text) == forms


@pytest.mark.parametrize("text", ["1,234" * 50_000, "a-" * 100_000, "_" * 200_000, "1." * 100_000, "9" * 200_000])
def test_long_text_takes_linear_time(text):
    started = time.perf_counter()
    leaked(text, "", text)
    assert time.perf_counter() - started < 2


def test_known_text_has_opening_tools_calls_and_observations():
    call = ToolCall(name="find", arguments={"id": "\u00e91"})
    message = Message(role="assistant", content="{}", tool_calls=(call,))
    turn = Turn(
        context_ids=(),
        action_ids=(),
        action_log_probs=(),
        message=message,
        observations=(Message(role="tool", content="found b2"),),
        author=Author.POLICY,
        state_hash="",
    )
    text = known_text([Message(role="user", content="hello a1")], [{"name": "get_order"}], [turn])
    assert text == ('hello a1\n[{"name": "get_order"}]\n{}\n{"name": "find", "arguments": {"id": "\u00e91"}}\nfound b2')


def test_escapes_hide_nothing():
    content = '{"name": "find", "arguments": {"id": "\\u0057-4821"}}'
    message = Message(
        role="assistant", content=content, tool_calls=(ToolCall(name="find", arguments={"id": "W-4821"}),)
    )
    assert leaked(EVIDENCE, KNOWN, content) == frozenset()
    assert leaked(EVIDENCE, KNOWN, message_text(message)) == {"w4821"}


def test_a_thought_is_no_hiding_place():
    message = Message(role="assistant", content="done", thinking="The rubric wants W-4821.")
    assert leaked(EVIDENCE, KNOWN, message.content) == frozenset()
    assert leaked(EVIDENCE, KNOWN, message_text(message)) == {"w4821"}
