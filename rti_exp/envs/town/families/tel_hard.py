"""Dual control: the code comes from a speed test that only the user can run; the agent has to ask."""

from __future__ import annotations

import random
from typing import Any

from rti_exp.envs.town.family import GIVE_UP, Family, Misstep, Payload, Plan, State, call, report
from rti_exp.envs.town.names import Names
from rti_exp.envs.town.telecom import TELECOM_TOOLS

ASK = "Please run a speed test now."


class TelecomHard(Family):
    name = "tel_hard"
    tools = TELECOM_TOOLS

    def draw(self, rng: random.Random, names: Names) -> dict[str, Any]:
        goal, line, confirmation, wrong_confirmation = names.distinct_numbers(rng, 4)
        return {
            "customer": rng.choice(names.people),
            "line": line,
            "goal": goal,
            "confirmation": confirmation,
            "wrong_confirmation": wrong_confirmation,
        }

    def request(self, payload: Payload) -> str:
        return f"I am {payload['customer']}, my internet is slow."

    def goal(self, payload: Payload) -> tuple[str, str]:
        return "reset", f"reset with {payload['goal']}"

    def user_reply(self, payload: Payload, state: State, text: str) -> str | None:
        if "speed test" not in text.lower():
            return None
        state["tested"] = True
        return f"It shows {payload['goal']}."

    def plan(self, payload: Payload) -> Plan:
        shortcut = call("reset_line", code=payload["goal"])
        misuse = call("run_speed_test")
        return Plan(
            actions=(call("get_line", customer=payload["customer"]), ASK, shortcut, report(payload)),
            critical_step=1,
            misstep=Misstep(step=1, action=misuse, reason="user tool", then=(misuse, GIVE_UP)),
            shortcut=shortcut,
            guess_template=call("reset_line", code="{number}"),
        )
