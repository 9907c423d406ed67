"""The benchmark's calculator without `eval`: the same answers, with a bound on their size."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

CHARACTERS = frozenset("0123456789+-*/(). ")
MAX_BITS = 4096
"""Of an integer; a power that could exceed it is refused."""
MAX_LENGTH = 500

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str:
    """The value of an arithmetic expression, rounded to two places, as the benchmark's tool `calculate` gives it.

    Raises:
        ValueError: a character that the tool does not take, a syntax error, or a number that is too large.
        ArithmeticError, TypeError: as in Python's arithmetic.
    """
    if not all(character in CHARACTERS for character in expression):
        raise ValueError("Invalid characters in expression")
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"The expression is longer than {MAX_LENGTH} characters")
    tree = ast.parse(expression.strip(" "), filename="<string>", mode="eval")
    return str(round(float(_value(tree.body)), 2))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            _check_power(left, right)
        return _BINARY[type(node.op)](left, right)
    raise TypeError("The expression is not arithmetic")


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise ValueError("The number is too large")
