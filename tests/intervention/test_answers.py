"""Strict reading of the roles' answers."""

import pytest

from rti_exp.intervention.answers import Unreadable, read_harmful, read_pass


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"harmful": false}', (False, "")),
        ('{"harmful": true}', (True, "")),
        (' {"reason": "{evidence}", "harmful": true}\n', (True, "{evidence}")),
        ('{"harmful": false, "reason": ""}', (False, "")),
        ('{"harmful": true, "reason": "two\nlines"}', (True, "two\nlines")),
        ('```json\n{"harmful": true, "reason": "x"}\n```', (True, "x")),
    ],
)
def test_read_harmful(text, answer):
    assert read_harmful(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"pass": true}', True),
        ('{"pass":false}', False),
        ('```json\n{"pass": true}\n```', True),
        ('{"pass": true}?</think>\n```\n{"pass": false}\n```', False),
    ],
)
def test_read_pass(text, answer):
    assert read_pass(text) is answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "true",
        "null",
        "[]",
        '["pass"]',
        "{}",
        '{"pass": 1}',
        '{"pass": 0}',
        '{"pass": "true"}',
        '{"pass": null}',
        '{"pass": []}',
        '{"pass": NaN}',
        '{"pass": Infinity}',
        '{"Pass": true}',
        '{"pass": True}',
        "{'pass': true}",
        '{"pass": true, "pass": true}',
        '{"pass": false, "pass": true}',
        '{"pass": true, "reason": "x"}',
        '{"pass": true} and so on',
        '{"pass": true}{"pass": true}',
        'So: {"pass": true}',
        '```json\n{"pass": true}',
        '```yaml\n{"pass": true}\n```',
        '<think>{"pass": true}',
        '{"pass": true',
        '{"pass": {"pass": true, "pass": true}}',
        '{"pass": ' + "9" * 10_000 + "}",
        "[" * 100_000,
        '{"pass": ' * 100_000,
        '__import__("os").getcwd()',
    ],
)
def test_anything_else_is_no_pass(text):
    with pytest.raises(Unreadable):
        read_pass(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"harmful": 1}',
        '{"reason": "x"}',
        '{"harmful": true, "reason": null}',
        '{"harmful": true, "reason": 3}',
        '{"harmful": true, "reason": NaN}',
        '{"harmful": true, "reason": "a", "reason": "b"}',
        '{"harmful": true, "step": 3}',
        '{"harmful": true, "reason": "\\ud800"}',
    ],
)
def test_anything_else_is_no_verdict(text):
    with pytest.raises(Unreadable):
        read_harmful(text)
