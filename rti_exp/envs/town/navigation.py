"""Tools of the navigation families: where am I, search a place, start a route."""

from __future__ import annotations

from collections.abc import Mapping

from rti_exp.envs.town.family import Payload, State, Tool, ToolError, settle


def _location(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    return f"You are in {payload['here']}."


def _search(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    """Without a city, the place of that name nearest to here comes first, and alone."""
    words = [word for word in arguments["query"].replace(",", " ").split() if word]
    if payload["place"] not in words:
        return "No hits."
    if payload["city"] in words:
        return f"{payload['goal']} {payload['place']}, {payload['city']}."
    return f"{payload['homonym']} {payload['place']}, {payload['here']}."


def _route(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    place = arguments["place"]
    if not (place.isascii() and place.isdigit()):
        raise ToolError("place must be a number")
    return f"Route {place} started, ticket {settle(payload, state, place)}."


NAVIGATION_TOOLS = (
    Tool(name="location", description="Tells the city where the user is now.", parameters=(), run=_location),
    Tool(
        name="search",
        description="Finds places. Name the place, and its city unless it is near the user.",
        parameters=("query",),
        run=_search,
    ),
    Tool(
        name="route", description="Starts the route to a place, given by its number.", parameters=("place",), run=_route
    ),
)
