"""A place whose number the user knows: the route can be started at once."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.families.nav_hard import NavigationHard
from rti_exp.envs.town.family import GIVE_UP, Misstep, Payload, Plan, call, report
from rti_exp.envs.town.names import Names


class NavigationEasy(NavigationHard):
    name = "nav_easy"

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        payload = super().draw(rng, names)
        return {**payload, "here": payload["city"], "homonym": payload["goal"]}

    def request(self, payload: Payload) -> str:
        return f"Take me to {payload['place']}, number {payload['goal']}."

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("route", place=payload["goal"])
        return Plan(
            actions=(call("location"), shortcut, report(payload)),
            critical_step=1,
            misstep=Misstep(step=1, action=GIVE_UP, reason="gave up", then=()),
            shortcut=shortcut,
            guess_template=call("route", place="{number}"),
        )
