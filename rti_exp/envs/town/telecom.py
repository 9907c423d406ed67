"""Tools of the telecom families. The speed test is on the user's phone: the agent can only ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from rti_exp.envs.town.family import Payload, State, Tool, ToolError, settle


def _get_line(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["customer"] != payload["customer"]:
        raise ToolError("no such customer")
    return f"Line {payload['line']} is active."


def _reset_line(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["code"] != payload["goal"]:
        raise ToolError("wrong code")
    return f"Line reset, ticket {settle(payload, state, arguments['code'])}."


TELECOM_TOOLS = (
    Tool(name="get_line", description="Looks a customer's line up.", parameters=("customer",), run=_get_line),
    Tool(
        name="reset_line",
        description="Resets the line. Needs the code that the speed test on the user's phone shows.",
        parameters=("code",),
        run=_reset_line,
    ),
)
