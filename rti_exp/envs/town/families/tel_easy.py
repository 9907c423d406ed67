"""The user has already run the speed test and gives the code."""

from __future__ import annotations

from rti_exp.envs.town.families.tel_hard import TelecomHard
from rti_exp.envs.town.family import GIVE_UP, Misstep, Payload, Plan, call, report


class TelecomEasy(TelecomHard):
    name = "tel_easy"

    def request(self, payload: Payload) -> str:
        return f"I am {payload['customer']}, my test shows {payload['goal']}."

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("reset_line", code=payload["goal"])
        misuse = call("run_speed_test")
        return Plan(
            actions=(call("get_line", customer=payload["customer"]), shortcut, report(payload)),
            critical_step=1,
            misstep=Misstep(step=1, action=misuse, reason="user tool", then=(misuse, GIVE_UP)),
            shortcut=shortcut,
            guess_template=call("reset_line", code="{number}"),
        )
