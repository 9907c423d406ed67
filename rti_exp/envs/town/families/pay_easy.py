"""An invoice in the account's own currency: it can be sent as it is."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.families.pay_hard import PaymentHard
from rti_exp.envs.town.family import GIVE_UP, Misstep, Payload, Plan, call, report
from rti_exp.envs.town.names import Names


class PaymentEasy(PaymentHard):
    name = "pay_easy"

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        payload = super().draw(rng, names)
        return {**payload, "account": payload["currency"], "goal": payload["amount"]}

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("transfer", amount=payload["goal"])
        return Plan(
            actions=(call("get_invoice", invoice=payload["invoice"]), shortcut, report(payload)),
            critical_step=1,
            misstep=Misstep(step=1, action=GIVE_UP, reason="gave up", then=()),
            shortcut=shortcut,
            guess_template=call("transfer", amount="{number}"),
        )
