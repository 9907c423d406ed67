"""The map as an MCP server: over stdio, or with `--http PORT` on http://127.0.0.1:PORT/mcp.

python -m rti_exp.envs.mcp.navigation
"""

from __future__ import annotations

import argparse

from mcp.server import MCPServer  # pyright: ignore[reportMissingImports]
from mcp.server.mcpserver.exceptions import ToolError  # pyright: ignore[reportMissingImports]

from rti_exp.envs.mcp.navigation.town_map import Place, TownMap

MAP = TownMap()
server = MCPServer("town map", log_level="CRITICAL")


def _line(place: Place) -> str:
    return f"{place.id}: {place.name}, {place.city} ({place.category})"


@server.tool(structured_output=False)
def search_places(query: str) -> str:
    """Finds places by name or category, at most three. Name the city too: places in other cities have the same name."""
    return "\n".join(_line(place) for place in MAP.search(query)) or "Nothing found."


@server.tool(structured_output=False)
def place_details(place_id: str) -> str:
    """Tells a place's name, city, category and coordinates in km. The id is one of a search's, such as p1234."""
    if place_id not in MAP.places:
        raise ToolError(f"there is no place with the id {place_id!r}; search for it")
    place = MAP.places[place_id]
    return f"{_line(place)}, at x={place.x} y={place.y}"


@server.tool(structured_output=False)
def plan_route(stops: list[str], mode: str = "drive") -> str:
    """Plans a route past places, given by their ids in order. The mode is drive, transit or walk."""
    try:
        route = MAP.route(stops, mode)
    except ValueError as error:
        raise ToolError(str(error)) from error
    return f"{route.kilometres} km, {route.minutes} minutes, by {', '.join(route.cities)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--http", type=int, metavar="PORT", help="serve over HTTP on this port of 127.0.0.1")
    port = parser.parse_args().http
    if port is None:
        server.run()
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
