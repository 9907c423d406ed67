"""Tools of the return families: orders, items in them, and sending back an item or a whole order, once."""

from __future__ import annotations

from collections.abc import Mapping

from rti_exp.envs.town.family import Payload, State, Tool, ToolError, settle


def _get_order(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["customer"] != payload["customer"]:
        raise ToolError("no such customer")
    return f"Order {payload['order']} is here."


def _find_item(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["order"] != payload["order"]:
        raise ToolError("no such order")
    if arguments["item"] != payload["item"]:
        raise ToolError("no such item")
    return f"Item {payload['number']} is here."


def _return(payload: Payload, state: State, value: str) -> str:
    if "settled" in state:
        raise ToolError("already returned")
    return f"Returned {value}, ticket {settle(payload, state, value)}."


def _return_item(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["number"] != payload["number"]:
        raise ToolError("no such item")
    return _return(payload, state, arguments["number"])


def _return_order(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["order"] != payload["order"]:
        raise ToolError("no such order")
    return _return(payload, state, arguments["order"])


SHOPPING_TOOLS = (
    Tool(name="get_order", description="Finds a customer's order.", parameters=("customer",), run=_get_order),
    Tool(
        name="find_item",
        description="Finds an item of an order by its name, and tells its number.",
        parameters=("order", "item"),
        run=_find_item,
    ),
    Tool(
        name="return_item",
        description="Sends one item back, given by its number.",
        parameters=("number",),
        run=_return_item,
    ),
    Tool(name="return_order", description="Sends a whole order back.", parameters=("order",), run=_return_order),
)
