from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rti_exp.envs.tau2.arithmetic import CHARACTERS, calculate


def by_the_benchmark(expression: str) -> str:
    """The body of the benchmark's tool."""
    if not all(char in "0123456789+-*/(). " for char in expression):
        raise ValueError("Invalid characters in expression")
    return str(round(float(eval(expression, {"__builtins__": None}, {})), 2))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 2", "4.0"),
        ("(46.66 + 54.04) * 3", "302.1"),
        ("-7 // 2", "-4.0"),
        ("2 ** 10", "1024.0"),
        ("1 / 3", "0.33"),
        (" 1.005", "1.0"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert calculate(expression) == value == by_the_benchmark(expression)


@pytest.mark.parametrize("expression", ["", "1 +", "(1)(2)", "...", "01", "1 / 0", "(-1) ** 0.5", "__import__", "1e9"])
def test_other_expressions_are_refused_as_by_the_benchmark(expression: str) -> None:
    with pytest.raises(Exception) as ours:  # noqa: PT011  (whatever the benchmark's is)
        calculate(expression)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        by_the_benchmark(expression)
    assert issubclass(theirs.type, Exception)
    assert issubclass(ours.type, ValueError | SyntaxError | ArithmeticError | TypeError)


@pytest.mark.parametrize("expression", ["9**9**9", "9**9**9**9", "(2**4000)**2", "1" * 501])
def test_what_would_take_forever_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"too large|longer than"):
        calculate(expression)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(sorted(CHARACTERS - {"*"})), max_size=12))
def test_any_text_gives_the_benchmarks_value_or_an_error_as_there(expression: str) -> None:
    try:
        expected = by_the_benchmark(expression)
    except Exception:
        expected = None
    try:
        value = calculate(expression)
    except (ValueError, SyntaxError, ArithmeticError, TypeError):
        value = None
    assert value == expected
