"""Tools of the return families: orders, their items, and sending back an item or a whole order, once."""

from __future__ import annotations

from collections.abc import Mapping

from rti_exp.envs.town.family import Payload, State, Tool, ToolError, settle


def _get_order(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["customer"] != payload["customer"]:
        raise ToolError("no such customer")
    return f"Order {payload['order']} is here."


def _get_items(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["order"] != payload["order"]:
        raise ToolError("no such order")
    return ", ".join(f"{name} {number}" for name, number in payload["items"]) + "."


def _return(payload: Payload, state: State, value: str) -> str:
    if "settled" in state:
        raise ToolError("already returned")
    return f"Returned {value}, ticket {settle(payload, state, value)}."


def _return_item(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    numbers = {f"{name} {number}": number for name, number in payload["items"]}
    if arguments["item"] not in numbers:
        raise ToolError("no such item")
    return _return(payload, state, numbers[arguments["item"]])


def _return_order(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["order"] != payload["order"]:
        raise ToolError("no such order")
    return _return(payload, state, arguments["order"])


SHOPPING_TOOLS = (
    Tool(name="get_order", description="Finds a customer's order.", parameters=("customer",), run=_get_order),
    Tool(
        name="get_items",
        description="Lists an order's items with their numbers.",
        parameters=("order",),
        run=_get_items,
    ),
    Tool(
        name="return_item",
        description="Sends one item back, given by its name and number.",
        parameters=("item",),
        run=_return_item,
    ),
    Tool(name="return_order", description="Sends a whole order back.", parameters=("order",), run=_return_order),
)
