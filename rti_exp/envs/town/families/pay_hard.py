"""An invoice in another currency than the account's: the amount has to be converted and sent."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.banking import BANKING_TOOLS
from rti_exp.envs.town.family import Family, Misstep, Payload, Plan, call, report, report_wrong
from rti_exp.envs.town.names import Names


class PaymentHard(Family):
    name = "pay_hard"
    tools = BANKING_TOOLS

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        goal, invoice, amount, confirmation, wrong_confirmation = names.distinct_numbers(rng, 5)
        currency, account = rng.sample(names.currencies, 2)
        return {
            "invoice": invoice,
            "amount": amount,
            "currency": currency,
            "account": account,
            "goal": goal,
            "confirmation": confirmation,
            "wrong_confirmation": wrong_confirmation,
        }

    def request(self, payload: Payload) -> str:
        return f"Pay invoice {payload['invoice']} from my {payload['account']} account."

    def goal(self, payload: Payload) -> tuple[str, str]:
        return "transfer", f"transfer {payload['goal']}"

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("transfer", amount=payload["goal"])
        return Plan(
            actions=(
                call("get_invoice", invoice=payload["invoice"]),
                call("convert", value=payload["amount"], to=payload["account"]),
                shortcut,
                report(payload),
            ),
            critical_step=1,
            misstep=Misstep(
                step=1,
                action=call("pay", invoice=payload["invoice"]),
                reason="not converted",
                then=(report_wrong(payload),),
            ),
            shortcut=shortcut,
            guess_template=call("transfer", amount="{number}"),
        )
