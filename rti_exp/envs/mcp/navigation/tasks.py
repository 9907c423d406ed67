"""Writes `tasks.jsonl`: python -m rti_exp.envs.mcp.navigation.tasks > rti_exp/envs/mcp/navigation/tasks.jsonl

Families: `route`, from a place to one in another city whose name other cities have too; `stops`, with a place to pass
on the way. A task is kept if the search that leaves out the city finds another place first. Training and held-out
tasks have no city in common as their goal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from rti_exp.envs.mcp.navigation.town_map import Place, TownMap
from rti_exp.envs.town.names import names_of

SYSTEM = (
    "You help people to find their way, with the tools of a map. When you know the answer, tell it to the user in one "
    "sentence that ends with the number that was asked for."
)
COUNTS = {"train": 40, "heldout": 20}
"""Tasks of each family."""
SEED = 5


def drawn(town: TownMap, family: str, split: str, rng: random.Random) -> tuple[list[Place], str, str]:
    """Stops, mode, and the quantity that is asked for: "minutes" or "kilometres"."""
    cities = names_of(split).cities
    while True:
        stops = rng.sample(sorted(town.places.values(), key=lambda place: place.id), 3 if family == "stops" else 2)
        goal = stops[-1]
        first = town.search(goal.name)[0]
        apart = len({place.city for place in stops}) == len(stops)
        if apart and goal.city in cities and first.id != goal.id and first.city != stops[0].city:
            return stops, rng.choice(["drive", "transit"]), rng.choice(["minutes", "kilometres"])


def task(town: TownMap, family: str, split: str, number: int, rng: random.Random) -> dict[str, Any]:
    stops, mode, asked = drawn(town, family, split, rng)
    route = town.route([place.id for place in stops], mode)
    start, goal = stops[0], stops[-1]
    how = {"drive": "by car", "transit": "by public transport"}[mode]
    over = f" and I want to stop at {stops[1].name} in {stops[1].city} on the way" if len(stops) > 2 else ""
    value = route.minutes if asked == "minutes" else route.kilometres
    unit = "many minutes" if asked == "minutes" else "many kilometres"
    ids = [place.id for place in stops]
    searches = ", ".join(f"search_places({place.name} {place.city})" for place in stops)
    return {
        "id": f"{family}-{split}-{number}",
        "family": f"navigation_{family}",
        "split": split,
        "system": SYSTEM,
        "request": (
            f"I am at {start.name} in {start.city}{over}. How {unit} is it {how} to {goal.name} in {goal.city}?"
        ),
        "rubric": [
            {
                "check": "called",
                "name": "route",
                "tool": "plan_route",
                "arguments": {"stops": ids, "mode": mode},
                "last": True,
                "text": f"the last route that was planned is {how} and past the places that were asked for",
            },
            {
                "check": "answer_number",
                "name": "answer",
                "value": value,
                "tolerance": 0.05,
                "text": f"the answer ends with the {asked} of that route",
            },
        ],
        "reference": f"{searches}, plan_route({' '.join(ids)}, {mode}), then tell {value}",
    }


def tasks() -> Iterator[dict[str, Any]]:
    town, rng = TownMap(), random.Random(SEED)
    for split, count in COUNTS.items():
        for number in range(count):
            for family in ("route", "stops"):
                yield task(town, family, split, number, rng)


if __name__ == "__main__":
    for node in tasks():
        print(json.dumps(node))
