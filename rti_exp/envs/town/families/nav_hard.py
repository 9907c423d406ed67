"""A place in another city: searched without its city, the homonym nearby comes first."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.family import Family, Misstep, Payload, Plan, call, report, report_wrong
from rti_exp.envs.town.names import Names
from rti_exp.envs.town.navigation import NAVIGATION_TOOLS


class NavigationHard(Family):
    name = "nav_hard"
    tools = NAVIGATION_TOOLS

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        goal, homonym, confirmation, wrong_confirmation = names.distinct_numbers(rng, 4)
        city, here = rng.sample(names.cities, 2)
        return {
            "place": rng.choice(names.places),
            "city": city,
            "here": here,
            "goal": goal,
            "homonym": homonym,
            "confirmation": confirmation,
            "wrong_confirmation": wrong_confirmation,
        }

    def request(self, payload: Payload) -> str:
        return f"Take me to {payload['place']} in {payload['city']}."

    def goal(self, payload: Payload) -> tuple[str, str]:
        return "route", f"route to {payload['goal']}"

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("route", place=payload["goal"])
        return Plan(
            actions=(
                call("location"),
                call("search", query=f"{payload['place']}, {payload['city']}"),
                shortcut,
                report(payload),
            ),
            critical_step=1,
            misstep=Misstep(
                step=1,
                action=call("search", query=payload["place"]),
                reason="no city",
                then=(call("route", place=payload["homonym"]), report_wrong(payload)),
            ),
            shortcut=shortcut,
            guess_template=call("route", place="{number}"),
        )
