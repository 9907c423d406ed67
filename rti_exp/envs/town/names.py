"""The town's names and numbers, and which of them a split may use.

Held-out tasks use places, cities, people, items and numbers that no training task uses; the
pretraining corpus of the embedded policy draws from all of them, as an LLM has read every name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PLACES = [
    "Luna",
    "Aster",
    "Birch",
    "Cedar",
    "Delta",
    "Ember",
    "Fable",
    "Grove",
    "Haven",
    "Iris",
    "Jade",
    "Koala",
    "Lotus",
    "Maple",
    "Nova",
    "Opal",
    "Pearl",
    "Quartz",
    "Raven",
    "Solar",
    "Terra",
    "Umbra",
    "Violet",
    "Willow",
    "Xenon",
    "Yarrow",
    "Zephyr",
    "Anchor",
    "Beacon",
    "Clover",
    "Dune",
    "Falcon",
    "Garnet",
    "Harbor",
    "Indigo",
    "Juniper",
    "Kestrel",
    "Lagoon",
    "Meadow",
    "Nectar",
    "Orchid",
    "Pepper",
    "Quiver",
    "Rocket",
    "Saffron",
    "Tulip",
    "Velvet",
    "Walnut",
]
CITIES = [
    "Oslo",
    "Rome",
    "Paris",
    "Lima",
    "Cairo",
    "Delhi",
    "Kyoto",
    "Quito",
    "Porto",
    "Turin",
    "Lyon",
    "Bern",
    "Malmo",
    "Gdansk",
    "Zagreb",
    "Sofia",
    "Tunis",
    "Accra",
    "Hanoi",
    "Osaka",
    "Perth",
    "Leeds",
    "Ghent",
    "Basel",
]
PEOPLE = [
    "Anna",
    "Boris",
    "Clara",
    "David",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Irene",
    "Jonas",
    "Karin",
    "Leo",
    "Mara",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Simon",
    "Tanja",
    "Ugo",
    "Vera",
    "Wanda",
    "Yusuf",
    "Zoe",
    "Amir",
    "Bella",
    "Carlo",
    "Dora",
    "Emil",
    "Fatma",
    "Gina",
    "Henry",
    "Ivan",
    "Julia",
    "Kofi",
    "Laura",
    "Mateo",
    "Nadia",
    "Oscar",
    "Petra",
    "Ravi",
    "Sara",
    "Tomas",
    "Ulla",
    "Viktor",
    "Wilma",
    "Xavier",
    "Yara",
]
ITEMS = [
    "Lamp",
    "Rug",
    "Chair",
    "Clock",
    "Kettle",
    "Mirror",
    "Pillow",
    "Radio",
    "Shelf",
    "Table",
    "Vase",
    "Fan",
    "Brush",
    "Bowl",
    "Plate",
    "Towel",
    "Watch",
    "Scarf",
    "Glove",
    "Jacket",
    "Sofa",
    "Desk",
    "Drill",
    "Tent",
]
CURRENCIES = ["EUR", "USD", "GBP", "JPY", "CHF", "SEK"]
NUMBERS = tuple(str(number) for number in range(10, 100))


@dataclass(frozen=True, slots=True)
class Names:
    """What one split draws from."""

    places: tuple[str, ...]
    cities: tuple[str, ...]
    people: tuple[str, ...]
    items: tuple[str, ...]
    numbers: tuple[str, ...]
    currencies: tuple[str, ...] = tuple(CURRENCIES)

    def distinct_numbers(self, rng: random.Random, count: int) -> list[str]:
        return rng.sample(self.numbers, count)


def _part(names: list[str] | tuple[str, ...], heldout: bool) -> tuple[str, ...]:
    """Every third name is held out."""
    return tuple(name for index, name in enumerate(names) if (index % 3 == 2) == heldout)


def names_of(split: str) -> Names:
    """Names of "train", "heldout" (disjoint; currencies are shared), or "all" (for pretraining).

    Raises:
        ValueError: another split.
    """
    if split == "all":
        return Names(tuple(PLACES), tuple(CITIES), tuple(PEOPLE), tuple(ITEMS), NUMBERS)
    if split not in ("train", "heldout"):
        raise ValueError(f'no split {split!r} in the town: use "train" or "heldout"')
    parts = (_part(names, split == "heldout") for names in (PLACES, CITIES, PEOPLE, ITEMS, NUMBERS))
    return Names(*parts)
