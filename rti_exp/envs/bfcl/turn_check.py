"""The benchmark's check of one user turn: states of all APIs, and the answers of the reference's calls.

`multi_turn_checker` of `bfcl-eval` executes a complete conversation again; here its two parts,
`state_checker` and `response_checker`, check the episode's existing instances after each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rti_exp.envs.bfcl.backend import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCheck:
    """`failure` is None if the turn passed. It names no call and no value of the reference."""

    turn: int
    failure: str | None


def check_turn(
    turn: int, *, called: bool, answers: Sequence[str], backend: Backend, expected: Backend, expected_answers: list[str]
) -> TurnCheck | None:
    """None for a turn without reference calls, which the benchmark does not check.

    Args:
        turn: index of the user turn.
        called: whether the policy called anything in this turn.
        answers: answers to the policy's calls in this and all earlier turns.
        backend: the episode's APIs after the turn.
        expected: the reference's APIs after the turn.
        expected_answers: answers to the reference's calls in this turn; may be empty.
    """
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import (  # pyright: ignore[reportMissingImports]
        response_checker,
        state_checker,
    )

    if not expected_answers:
        return None
    if not called:
        return TurnCheck(turn=turn, failure="no tool was called")
    try:
        state: dict[str, Any] = state_checker(backend.instances, expected.instances)
    except RecursionError:  # folders that hold each other
        return TurnCheck(turn=turn, failure="the final state is not as it should be")
    if not state["valid"]:
        wrong = ", ".join(sorted(state["details"]["differences"]))
        name = next(name for name, instance in expected.instances.items() if name in state["error_message"])
        return TurnCheck(turn=turn, failure=f"the state of {name} is not as it should be ({wrong})")
    response: dict[str, Any] = response_checker(list(answers), expected_answers, turn)
    if not response["valid"]:
        missing = len(response["details"]["missing_items"])
        return TurnCheck(turn=turn, failure=f"{missing} of {len(expected_answers)} tool answers it needs are missing")
    return TurnCheck(turn=turn, failure=None)
