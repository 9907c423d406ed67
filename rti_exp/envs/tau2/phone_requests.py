"""Reading what an agent asks a phone's owner to do: tool names, or plain English about the phone's settings."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One thing to do with the phone. `position` is the switch's target position; None: just call the tool."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    position: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A setting with two positions: the tools that toggle and show it, and the text that means "on"."""

    words: str
    toggle: str
    check: str
    shows_on: str


SWITCHES = (
    Switch(
        words=r"(air ?plane|flight) mode",
        toggle="toggle_airplane_mode",
        check="check_network_status",
        shows_on="Airplane Mode: ON",
    ),
    Switch(
        words=r"data saver( mode)?",
        toggle="toggle_data_saver_mode",
        check="check_data_restriction_status",
        shows_on="Data Saver mode is ON",
    ),
    Switch(
        words=r"(data )?roaming",
        toggle="toggle_roaming",
        check="check_network_status",
        shows_on="Data Roaming Enabled: Yes",
    ),
    Switch(
        words=r"wi-?fi calling",
        toggle="toggle_wifi_calling",
        check="check_wifi_calling_status",
        shows_on="turned ON",
    ),
    Switch(
        words=r"(mobile|cellular) data",
        toggle="toggle_data",
        check="check_network_status",
        shows_on="Mobile Data Enabled: Yes",
    ),
    Switch(words=r"wi-?fi", toggle="toggle_wifi", check="check_wifi_status", shows_on="Wi-Fi is ON"),
)
_DEEDS = (
    (r"\b(reboot|restart)", "reboot_device"),
    (r"\b(re-?seat|re-?insert|remove and)\b.*\bsim\b|\bsim\b.*\b(re-?seat|re-?insert)", "reseat_sim_card"),
    (r"\breset\b.*\bapn\b", "reset_apn_settings"),
    (r"\b(disconnect|turn off|switch off|disable|deactivate)\b.*\bvpn\b", "disconnect_vpn"),
    (r"\bvpn\b.*\b(off|disconnected)\b", "disconnect_vpn"),
    (r"\b(connect|turn on|switch on|enable)\b.*\bvpn\b", "connect_vpn"),
    (r"\b(make|complete)\b.*\bpayment\b|\bpay\b.*\bbill\b|\baccept\b.*\bpayment\b", "make_payment"),
)
_LOOKS = (
    (r"\bspeed ?test\b", "run_speed_test"),
    (r"\bstatus bar\b", "check_status_bar"),
    (r"\bpayment request\b", "check_payment_request"),
    (r"\bvpn\b", "check_vpn_status"),
    (r"\bapn\b", "check_apn_settings"),
    (r"\bsim\b", "check_sim_status"),
    (r"\bnetwork mode\b|\bpreferred network\b", "check_network_mode_preference"),
    (r"\b(send|sending)\b.*\b(mms|picture message)", "can_send_mms"),
    (r"\binstalled apps\b", "check_installed_apps"),
    (r"\bnetwork status\b|\bsignal\b|\bcellular connection\b", "check_network_status"),
)
_MODES = (
    (r"5g", "4g_5g_preferred"),
    (r"\b4g|\blte", "4g_only"),
    (r"\b3g", "3g_only"),
    (r"\b2g", "2g_only"),
)
_PERMISSIONS = ("storage", "sms", "phone", "network")
_APPS = ("messaging", "browser")

_TURNING = r"\b(turn|switch|toggle|enable|disable|activate|deactivate|set|make sure|ensure)\b"
_LOOKING = r"^\W*(please )?(check|verify|see|confirm)\b"
_ON, _OFF = r"\b(on|enabled?|activated?|active)\b", r"\b(off|disabled?|deactivated?)\b"
_NOT_ASKED = re.compile(
    r"\b(do not|don't|no need to|avoid|never|without|plan)\b"
    r"|\b(me to|shall i|should i|may i|can i|do you want|would you like)\b"
    r"|^\s*(i|we|i've|we've|i'm|i'll|it|that|your line|your account)\b(?!.*\byou to\b)",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r"[.!;\n](?=\s|$)|\?|,? then\b|,? and (?=(?:then |also |please )*(?:turn|switch|toggle|enable|disable|check|run|"
    r"reboot|restart|reset|re-?seat|grant|set|disconnect|connect|make|try|pay|tell|let)\b)",
    re.IGNORECASE,
)
_CALL = re.compile(r"\b([a-z]+(?:_[a-z]+)+)\b(?:\(([^()]*)\))?")
_ARGUMENT = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_WORKS = re.compile(
    r"\b(try (again|now|it|that)|does (it|that) work|working now|is it (working|fixed|resolved)|issue (is )?(now )?"
    r"(resolved|fixed)|(resolved|fixed|improved|better|working) now|has (it|this|that) (fixed|resolved|helped))\b",
    re.IGNORECASE,
)


def requests(text: str, tools: Collection[str]) -> list[Request]:
    """The requests in the text, in order. The text may name the phone's `tools` by their function names.

    Statements of what the agent did or may do, and of what the user should not do, are not requests.
    """
    matches: list[Request] = []
    for clause in _CLAUSES.split(text):
        if clause is None or not clause.strip():
            continue
        named = [_named(match) for match in _CALL.finditer(clause) if match[1] in tools]
        if named:
            matches += named
        elif _NOT_ASKED.search(clause) is None:
            matches += _read(clause)
    return _without_repeats(matches)


def asks_whether_it_works(text: str) -> bool:
    """Whether the text asks the user to check if the problem is still there."""
    return _WORKS.search(text) is not None


def _without_repeats(matches: list[Request]) -> list[Request]:
    return [request for place, request in enumerate(matches) if place == 0 or request != matches[place - 1]]


def _named(match: re.Match[str]) -> Request:
    inner = match[2] or ""
    if inner.strip().startswith("{"):
        try:
            arguments = json.loads(inner, strict=False)
        except ValueError:
            arguments = {}
        return Request(tool=match[1], arguments=arguments if isinstance(arguments, dict) else {})
    return Request(
        tool=match[1], arguments={name: double or single for name, double, single in _ARGUMENT.findall(inner)}
    )


def _read(clause: str) -> list[Request]:
    """Reads plain English: actions first, then permissions and network mode, then switches, then checks."""
    text = clause.lower()
    deeds = [Request(tool=tool) for pattern, tool in _DEEDS if re.search(pattern, text)]
    if deeds:
        return deeds[:1]
    if "permission" in text:
        return _permissions(text)
    if re.search(r"\bnetwork mode\b|\bpreferred network\b", text) and re.search(r"\b(set|change|switch)\b", text):
        mode = next((mode for pattern, mode in _MODES if re.search(pattern, text)), None)
        if mode is not None:
            return [Request(tool="set_network_mode_preference", arguments={"mode": mode})]
    switched = _switched(text)
    if switched:
        return switched
    return [Request(tool=tool) for pattern, tool in _LOOKS if re.search(pattern, text)][:1]


def _permissions(text: str) -> list[Request]:
    app = next((name for name in _APPS if name in text), "messaging")
    if not re.search(r"\b(grant|give|allow|enable|turn on)\b", text):
        return [Request(tool="check_app_permissions", arguments={"app_name": app})]
    granted = sorted((name for name in _PERMISSIONS if re.search(rf"\b{name}\b", text)), key=text.find)
    return [Request(tool="grant_app_permission", arguments={"app_name": app, "permission": name}) for name in granted]


def _switched(text: str) -> list[Request]:
    matches: list[tuple[int, Request]] = []
    rest = text
    turning = re.search(_TURNING, text) is not None and re.search(_LOOKING, text) is None
    position = False if re.search(_OFF, text) else True if re.search(_ON, text) else None
    for switch in SWITCHES:
        match = re.search(switch.words, rest)
        if match is None:
            continue
        # "wi-fi calling" does not mean "wi-fi", nor "data saver" "data".
        rest = rest[: match.start()] + " " * len(match[0]) + rest[match.end() :]
        toggled = Request(tool=switch.toggle, position=position)
        matches.append((match.start(), toggled if turning else Request(tool=switch.check)))
    return [request for _, request in sorted(matches, key=lambda match: match[0])]
