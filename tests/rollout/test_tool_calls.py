import json

import pytest

from rti_exp.engines.tool_json import MAX_DEPTH, MalformedToolCall
from rti_exp.rollout.tool_calls import JsonCalls, parse_tool_call
from rti_exp.types import ToolCall


def test_a_call():
    text = '{"name": "search", "arguments": {"query": "café", "limits": [1, 2.5, null, true]}}'
    call = parse_tool_call(text)
    assert call == ToolCall(name="search", arguments={"query": "café", "limits": [1, 2.5, None, True]})
    assert parse_tool_call(' {"arguments": {}, "name": "open"}\n') == ToolCall(name="open", arguments={})


@pytest.mark.parametrize("arguments", ["null", '""', "{}"])
def test_a_call_without_arguments(arguments):
    assert parse_tool_call(f'{{"name": "open", "arguments": {arguments}}}') == ToolCall(name="open", arguments={})


def test_control_characters_in_strings_are_text():
    call = parse_tool_call('{"name": "a", "arguments": {"x": "line\nbreak\tand\x00nul"}}')
    assert call == ToolCall(name="a", arguments={"x": "line\nbreak\tand\x00nul"})


@pytest.mark.parametrize("text", ["null", "[]", " null\n", "{}"])
def test_an_empty_json_value_is_an_attempt_at_a_call(text):
    calls, malformed = JsonCalls().read(text)
    assert calls == ()
    assert malformed is not None
    assert "one JSON object" in malformed


@pytest.mark.parametrize("text", ["27", "nullify", "[1, 2]", "It is {done}."])
def test_other_text_is_for_the_user(text):
    assert JsonCalls().read(text) == ((), None)


def nested(depth: int) -> str:
    return '{"name": "a", "arguments": ' + '{"a": ' * depth + "1" + "}" * depth + "}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"name": "a", "arguments": {}} and more', "Extra data"),
        ('{"name": "a", "arguments": {}}{}', "Extra data"),
        ("{'name': 'a', 'arguments': {}}", "not valid JSON"),
        ("null", "one JSON object"),
        ("[]", "one JSON object"),
        ('"text"', "one JSON object"),
        ("{}", "one JSON object"),
        ('{"name": "a"}', "one JSON object"),
        ('{"name": "a", "arguments": {}, "id": 1}', "one JSON object"),
        ('{"name": null, "arguments": {}}', '"name"'),
        ('{"name": 3, "arguments": {}}', '"name"'),
        ('{"name": "a", "arguments": "{}"}', '"arguments"'),
        ('{"name": "a", "arguments": []}', '"arguments"'),
        ('{"name": "a", "name": "b", "arguments": {}}', "same key twice"),
        ('{"name": "a", "arguments": {"x": {"y": 1, "y": 1}}}', "same key twice"),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN"),
        ('{"name": "a", "arguments": {"x": -Infinity}}', "-Infinity"),
        ('{"name": "a", "arguments": {"x": 1e999}}', "too large"),
        ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", "too long"),
        ('{"name": "a", "arguments": {"x": "\\ud800"}}', "surrogate"),
        ('{"name": "a", "arguments": {"\\udfff": 1}}', "surrogate"),
        ('{"name": "\ud800", "arguments": {}}', "surrogate"),
        ('{"name": "a", "arguments": {"x": "caf\ufffd"}}', "UTF-8"),
        (nested(MAX_DEPTH), "too deeply"),
        ('{"name": "a", "arguments": {"x": ' + "[" * 100_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
    ],
)
def test_malformed_calls_say_why(text, reason):
    with pytest.raises(MalformedToolCall, match=reason) as caught:
        parse_tool_call(text)
    assert str(caught.value).endswith(".")


def test_calls_can_be_written_as_strict_json_again():
    for text in (nested(MAX_DEPTH - 1), '{"name": "a", "arguments": {"x": "\\ud83d\\ude00", "y": 1e308}}'):
        call = parse_tool_call(text)
        written = json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode("utf-8")
        assert json.loads(written) == json.loads(text)["arguments"]
