"""The town's cities and places on a map, with a search and a route planner. It is stateless: every answer is a look-up.

Cities stand on a grid with a road to each neighbour; a place's name comes in several cities, so that a search that
does not name the city finds another place of that name first.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rti_exp.envs.town.names import CITIES, PLACES

SEED = 11
COLUMNS = 6
SPACING_KM = 40
CITY_RADIUS_KM = 4.0
PLACES_IN_A_CITY = 12
CATEGORIES = ("cafe", "museum", "hotel", "pharmacy", "station", "park")
SPEED_KMH = {"drive": 60.0, "transit": 40.0, "walk": 5.0}
MOST_RESULTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Coordinates in km from the map's south-west; `visits` orders a search that names no city."""

    id: str
    name: str
    city: str
    category: str
    x: float
    y: float
    visits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    kilometres: float
    minutes: int
    cities: tuple[str, ...]


class TownMap:
    """A map drawn from a seed."""

    def __init__(self, seed: int = SEED) -> None:
        rng = random.Random(seed)
        self.centres = {
            city: (SPACING_KM * (number % COLUMNS), SPACING_KM * (number // COLUMNS))
            for number, city in enumerate(CITIES)
        }
        places = []
        for city, (x, y) in self.centres.items():
            for name in rng.sample(PLACES, PLACES_IN_A_CITY):
                angle, distance = rng.uniform(0, 2 * math.pi), rng.uniform(0.3, CITY_RADIUS_KM)
                places.append(
                    Place(
                        id="",
                        name=name,
                        city=city,
                        category=rng.choice(CATEGORIES),
                        x=round(x + distance * math.cos(angle), 1),
                        y=round(y + distance * math.sin(angle), 1),
                        visits=rng.randrange(1_000_000),
                    )
                )
        numbers = rng.sample(range(1000, 10_000), len(places))
        self.places = {
            f"p{number}": dataclasses.replace(place, id=f"p{number}")
            for number, place in zip(numbers, places, strict=True)
        }

    def search(self, query: str) -> list[Place]:
        """Places whose name or category is in the query, in its city if it names one; the most visited first."""
        words = {word.casefold() for word in query.replace(",", " ").split()}
        matching = [place for place in self.places.values() if {place.name.casefold(), place.category} & words]
        named = [place for place in matching if place.city.casefold() in words]
        return sorted(named or matching, key=lambda place: -place.visits)[:MOST_RESULTS]

    def route(self, stops: Sequence[str], mode: str) -> Route:
        """The shortest way over the roads past the places `stops`, in their order.

        Raises:
            ValueError: an unknown place or mode, or fewer than two stops; the message is an answer to the caller.
        """
        if mode not in SPEED_KMH:
            raise ValueError(f"mode must be one of {', '.join(SPEED_KMH)}")
        if len(stops) < 2:
            raise ValueError("a route has at least two stops")
        unknown = [stop for stop in stops if stop not in self.places]
        if unknown:
            raise ValueError(f"there is no place with the id {unknown[0]!r}; search for it")
        legs = [self._leg(self.places[start], self.places[goal]) for start, goal in itertools.pairwise(stops)]
        kilometres = sum(length for length, _ in legs)
        cities = [city for _, passed in legs for city in passed]
        return Route(
            kilometres=round(kilometres, 1),
            minutes=round(60 * kilometres / SPEED_KMH[mode]),
            cities=tuple(city for city, _ in itertools.groupby(cities)),
        )

    def _leg(self, start: Place, goal: Place) -> tuple[float, list[str]]:
        """Length and cities of the way between two places: straight in a city, else by the cities' centres."""
        if start.city == goal.city:
            return math.dist((start.x, start.y), (goal.x, goal.y)), [start.city]
        length, cities = self._roads(start.city, goal.city)
        ends = sum(math.dist((place.x, place.y), self.centres[place.city]) for place in (start, goal))
        return length + ends, cities

    def _roads(self, start: str, goal: str) -> tuple[float, list[str]]:
        """Dijkstra over the grid; ties are broken by the cities' alphabetical order."""
        queue: list[tuple[float, list[str]]] = [(0.0, [start])]
        done: set[str] = set()
        while queue:
            length, way = heapq.heappop(queue)
            if way[-1] == goal:
                return length, way
            if way[-1] in done:
                continue
            done.add(way[-1])
            for city, centre in self.centres.items():
                road = math.dist(centre, self.centres[way[-1]])
                if city not in done and road <= SPACING_KM:
                    heapq.heappush(queue, (length + road, [*way, city]))
        raise AssertionError(f"no way from {start} to {goal}")
