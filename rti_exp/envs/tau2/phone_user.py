"""The scripted user of the telecom domain: follows the agent's instructions with the tools of a phone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rti_exp.envs.tau2.phone_requests import SWITCHES, Request, asks_whether_it_works, requests
from rti_exp.envs.tau2.users import (
    ENOUGH,
    STOP,
    TRANSFER,
    Said,
    Scenario,
    answer,
    is_transfer,
    last_text,
    opening,
)
from rti_exp.types import Message, ToolCall

_BY_TOGGLE = {switch.toggle: switch for switch in SWITCHES}
_CHANGING = ("toggle_", "set_", "reset_", "reseat_", "reboot_", "grant_", "connect_", "disconnect_", "make_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How the user checks that the problem is solved: a tool, and what its answer must and must not contain."""

    tool: str
    holds: str
    lacks: tuple[str, ...] = ()

    def met(self, shown: str) -> bool:
        return self.holds in shown and not any(text in shown for text in self.lacks)


def goal(scenario: Scenario) -> Goal:
    """The goal by the scenario's wording: an MMS can be sent, the speed test is excellent, or there is a signal."""
    if "MMS" in scenario.reason:
        return Goal(tool="can_send_mms", holds="can send MMS")
    if "internet speed" in scenario.reason:
        return Goal(tool="run_speed_test", holds="(Excellent)")
    return Goal(tool="check_status_bar", holds="Status Bar:", lacks=("No Signal", "Airplane Mode"))


class _Needed(Exception):
    """A call that must precede the user's next text."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call.name)
        self.call = call


class PhoneUser:
    """Does what the agent asks for, one call at a time and in its order, and reports the results.

    After a change, and when asked whether it works, the user checks whether the problem is solved; if so, the
    conversation ends. Before switching something on or off, the user checks its position.
    `rti_exp.envs.tau2.phone_requests` parses the agent's text. If it contains no known request, the user states
    facts, says yes (or no, if the scenario rules it out), or asks what to do.
    """

    def __init__(self, scenario: Scenario, tools: Collection[str]) -> None:
        self.scenario = scenario
        self.tools = frozenset(tools)
        self.goal = goal(scenario)

    def say(self, seen: Sequence[Message]) -> Said:
        if not any(message.role == "user" for message in seen):
            return Said(text=opening(self.scenario))
        asked = last_text(seen)
        if is_transfer(asked):
            return Said(text=TRANSFER)
        try:
            return Said(text=self._reply(asked, _Results(seen), seen))
        except _Needed as needed:
            return Said(calls=(needed.call,))

    def _reply(self, asked: str, results: _Results, seen: Sequence[Message]) -> str:
        """The user's text; raises `_Needed` while a tool call is missing for it."""
        texts: list[str] = []
        changed = False
        for request in requests(asked, self.tools):
            text, done = _carried_out(request, results)
            texts.append(text)
            changed = changed or done
        if changed or asks_whether_it_works(asked):
            shown = results.of(ToolCall(name=self.goal.tool, arguments={}))
            if self.goal.met(shown):
                return f"It works now, thank you. {STOP}"
            texts.append(f"The problem is still there. {shown}")
        if texts:
            return "\n".join(texts)
        if _idle(seen) >= ENOUGH:
            return f"I will try again another time. {STOP}"
        if "?" in asked:
            return answer(self.scenario, asked)
        return "All right. What do you want me to do now?"


class _Results:
    """The results of the calls since the agent last spoke, taken in their order."""

    def __init__(self, seen: Sequence[Message]) -> None:
        last = max(place for place, message in enumerate(seen) if message.role == "assistant")
        self._results = [message.content for message in seen[last:] if message.role == "tool"]
        self._taken = 0

    def of(self, call: ToolCall) -> str:
        """The result of the next call, which is `call`, since calls are a function of what came before."""
        if self._taken == len(self._results):
            raise _Needed(call)
        self._taken += 1
        return self._results[self._taken - 1]


def _carried_out(request: Request, results: _Results) -> tuple[str, bool]:
    """(text to report, whether something may have changed)."""
    switch = _BY_TOGGLE.get(request.tool)
    if switch is not None and request.position is not None:
        shown = results.of(ToolCall(name=switch.check, arguments={}))
        if (switch.shows_on in shown) is request.position:
            return f"That is how it is already. {shown}", False
    result = results.of(ToolCall(name=request.tool, arguments=dict(request.arguments)))
    return result, request.tool.startswith(_CHANGING)


def _idle(seen: Sequence[Message]) -> int:
    """The number of the user's last texts in a row without a tool call before them."""
    count, called = 0, False
    for message in reversed(seen):
        if message.role == "tool":
            called = True
        elif message.role == "assistant":
            called = False
        elif message.role == "user" and not message.tool_calls:
            count += 1
        if called:
            break
    return count
