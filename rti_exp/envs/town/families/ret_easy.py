"""The whole order goes back."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.families.ret import Return
from rti_exp.envs.town.family import GIVE_UP, Misstep, Payload, Plan, call, report
from rti_exp.envs.town.names import Names


class ReturnEasy(Return):
    name = "ret_easy"

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        payload = super().draw(rng, names)
        return {**payload, "goal": payload["order"]}

    def request(self, payload: Payload) -> str:
        return f"I am {payload['customer']}, return my whole order."

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("return_order", order=payload["goal"])
        return Plan(
            actions=(call("get_order", customer=payload["customer"]), shortcut, report(payload)),
            critical_step=1,
            misstep=Misstep(step=1, action=GIVE_UP, reason="gave up", then=()),
            shortcut=shortcut,
            guess_template=call("return_order", order="{number}"),
        )
