"""One item of an order goes back; sending the whole order back is wrong."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.family import Family, Misstep, Payload, Plan, call, report, report_wrong
from rti_exp.envs.town.names import Names
from rti_exp.envs.town.shopping import SHOPPING_TOOLS


class Return(Family):
    name = "ret"
    tools = SHOPPING_TOOLS

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        goal, order, confirmation, wrong_confirmation = names.distinct_numbers(rng, 4)
        return {
            "customer": rng.choice(names.people),
            "item": rng.choice(names.items),
            "order": order,
            "number": goal,
            "goal": goal,
            "confirmation": confirmation,
            "wrong_confirmation": wrong_confirmation,
        }

    def request(self, payload: Payload) -> str:
        return f"I am {payload['customer']}, return only the {payload['item']}."

    def goal(self, payload: Payload) -> tuple[str, str]:
        return "return", f"return {payload['goal']}"

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("return_item", number=payload["goal"])
        return Plan(
            actions=(
                call("get_order", customer=payload["customer"]),
                call("find_item", order=payload["order"], item=payload["item"]),
                shortcut,
                report(payload),
            ),
            critical_step=1,
            misstep=Misstep(
                step=1,
                action=call("return_order", order=payload["order"]),
                reason="whole order",
                then=(report_wrong(payload),),
            ),
            shortcut=shortcut,
            guess_template=call("return_item", number="{number}"),
        )
