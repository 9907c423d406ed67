"""Who plays the user: the owner of a phone, one who tells all at once, and a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.tau2.phone_requests import Request, asks_whether_it_works, requests
from rti_exp.envs.tau2.phone_user import PhoneUser, goal
from rti_exp.envs.tau2.users import Memory, ModelUser, Said, Scenario, ScriptedUser, in_first_person
from rti_exp.types import Message, ToolCall

TOOLS = ("run_speed_test", "toggle_airplane_mode", "toggle_roaming", "grant_app_permission", "check_network_status")
PHONE = Scenario(
    whole="",
    reason="Your internet speed is low. You want excellent internet speed.",
    known="You are Ann with phone number 555.",
    instructions="You do not want to change your mobile data plan.",
)


def asked(text: str) -> Message:
    return Message(role="assistant", content=text)


def user_said(text: str) -> Message:
    return Message(role="user", content=text)


def did(name: str) -> Message:
    return Message(role="user", content="", tool_calls=(ToolCall(name=name, arguments={}),))


def saw(text: str) -> Message:
    return Message(role="tool", content=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Please run a speed test.", [Request(tool="run_speed_test")]),
        ("Call `run_speed_test` please", [Request(tool="run_speed_test")]),
        ("Turn airplane mode off.", [Request(tool="toggle_airplane_mode", position=False)]),
        ("Could you turn on your mobile data?", [Request(tool="toggle_data", position=True)]),
        ("Please toggle airplane mode.", [Request(tool="toggle_airplane_mode")]),
        ("Make sure that data roaming is enabled.", [Request(tool="toggle_roaming", position=True)]),
        ("Is airplane mode on?", [Request(tool="check_network_status")]),
        ("Check whether Wi-Fi calling is turned on.", [Request(tool="check_wifi_calling_status")]),
        ("Disable Data Saver mode.", [Request(tool="toggle_data_saver_mode", position=False)]),
        (
            "Turn off Wi-Fi calling and then turn on mobile data",
            [Request(tool="toggle_wifi_calling", position=False), Request(tool="toggle_data", position=True)],
        ),
        (
            "Enable mobile data and roaming.",
            [Request(tool="toggle_data", position=True), Request(tool="toggle_roaming", position=True)],
        ),
        ("Remove and re-insert your SIM card.", [Request(tool="reseat_sim_card")]),
        (
            "Reset the APN settings, then restart your phone.",
            [Request(tool="reset_apn_settings"), Request(tool="reboot_device")],
        ),
        (
            "Please set the network mode to 4G/5G preferred.",
            [Request(tool="set_network_mode_preference", arguments={"mode": "4g_5g_preferred"})],
        ),
        (
            "Grant the messaging app the SMS and storage permission.",
            [
                Request(tool="grant_app_permission", arguments={"app_name": "messaging", "permission": "sms"}),
                Request(tool="grant_app_permission", arguments={"app_name": "messaging", "permission": "storage"}),
            ],
        ),
        (
            "grant_app_permission(app_name=\"messaging\", permission='sms')",
            [Request(tool="grant_app_permission", arguments={"app_name": "messaging", "permission": "sms"})],
        ),
        ("Disconnect the VPN.", [Request(tool="disconnect_vpn")]),
        ("Can you send an MMS now?", [Request(tool="can_send_mms")]),
        ("What does the status bar show?", [Request(tool="check_status_bar")]),
        ("Please pay the bill.", [Request(tool="make_payment")]),
        ("I have enabled roaming on your line.", []),
        ("Do not turn off mobile data.", []),
        ("Would you like me to enable roaming?", []),
        ("I need you to turn on roaming.", [Request(tool="toggle_roaming", position=True)]),
        ("Hello, what is your name?", []),
    ],
)
def test_what_is_asked_of_the_phones_owner(text: str, expected: list[Request]) -> None:
    assert requests(text, TOOLS) == expected


@pytest.mark.parametrize(
    ("text", "whether"), [("Does it work now?", True), ("Is the issue resolved?", True), ("Run a speed test.", False)]
)
def test_whether_it_works(text: str, whether: bool) -> None:
    assert asks_whether_it_works(text) is whether


def test_the_problem_is_solved_by_the_scenarios_own_words() -> None:
    assert goal(PHONE).tool == "run_speed_test"
    assert goal(PHONE).met("Speed Test Result: 275.00 Mbps (Excellent). Connection is very fast.")
    assert not goal(PHONE).met("Speed Test Result: 27.50 Mbps (Good).")
    assert goal(Scenario(whole="", reason="You cannot send MMS.")).tool == "can_send_mms"
    bar = goal(Scenario(whole="", reason="Your phone shows 'No Service'."))
    assert bar.met("Status Bar: 📶⁴ Excellent | 5G | 🔋 80%")
    assert not bar.met("Status Bar: 📵 No Signal | 📵 Data Disabled | 🔋 80%")


def test_a_phones_owner_carries_out_looks_and_ends() -> None:
    user = PhoneUser(PHONE, TOOLS)
    seen = [asked("Hi!")]
    opening = user.say(seen)
    assert opening == Said(
        text="My internet speed is low. I want excellent internet speed. I am Ann with phone number 555."
    )
    seen += [user_said(opening.text), asked("Turn airplane mode off.")]
    assert user.say(seen).calls == (ToolCall(name="check_network_status", arguments={}),)
    seen += [did("check_network_status"), saw("Airplane Mode: ON\nSIM Card Status: active")]
    assert user.say(seen).calls == (ToolCall(name="toggle_airplane_mode", arguments={}),)
    seen += [did("toggle_airplane_mode"), saw("Airplane Mode is now OFF.")]
    assert user.say(seen).calls == (ToolCall(name="run_speed_test", arguments={}),)
    seen += [did("run_speed_test"), saw("Speed Test Result: 27.50 Mbps (Good).")]
    answer = user.say(seen)
    assert answer.text == "Airplane Mode is now OFF.\nThe problem is still there. Speed Test Result: 27.50 Mbps (Good)."
    assert not answer.ends
    seen += [user_said(answer.text), asked("Does it work now?")]
    assert user.say(seen).calls == (ToolCall(name="run_speed_test", arguments={}),)
    seen += [did("run_speed_test"), saw("Speed Test Result: 275.00 Mbps (Excellent).")]
    assert user.say(seen) == Said(text="It works now, thank you. ###STOP###")
    assert user.say(seen).ends


def test_a_switch_that_stands_right_is_not_touched() -> None:
    seen = [user_said("x"), asked("Turn airplane mode off."), did("check_network_status"), saw("Airplane Mode: OFF")]
    assert PhoneUser(PHONE, TOOLS).say(seen).text == "That is how it is already. Airplane Mode: OFF"


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("What is your phone number?", "I am Ann with phone number 555."),
        ("Shall I add 2 GB of data?", "Yes, please."),
        ("Do you want to change your mobile data plan?", "No, I do not want to change my mobile data plan."),
        ("Thank you.", "All right. What do you want me to do now?"),
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", "###TRANSFER###"),
    ],
)
def test_what_a_phones_owner_answers(text: str, reply: str) -> None:
    assert PhoneUser(PHONE, TOOLS).say([user_said("x"), asked(text)]).text == reply


def test_a_phones_owner_loses_patience() -> None:
    seen = [asked("Hi!")]
    user = PhoneUser(PHONE, TOOLS)
    for _ in range(8):
        said = user.say(seen)
        assert not said.ends
        seen += [user_said(said.text), asked("Thank you.")]
    assert user.say(seen) == Said(text="I will try again another time. ###STOP###")


def test_a_user_without_a_phone_tells_all_and_ends_when_nothing_is_asked() -> None:
    user = ScriptedUser(Scenario(whole="", reason="Cancel your order.", known="You are Bob."))
    seen = [asked("Hi!")]
    assert user.say(seen).text == "Cancel my order. I am Bob."
    seen += [user_said("Cancel my order. I am Bob."), asked("Shall I cancel it?")]
    assert user.say(seen).text == "Yes, please."
    assert user.say([*seen, user_said("Yes, please."), asked("It is done.")]).text == "Thank you. ###STOP###"


@pytest.mark.parametrize(
    ("second", "first"),
    [
        ("You are a team member who needs to create a task.", "I am a team member who needs to create a task."),
        ("If it is offered to you, you take it.", "If it is offered to me, I take it."),
        ("You mobile data is slow.", "My mobile data is slow."),
    ],
)
def test_the_first_person(second: str, first: str) -> None:
    assert in_first_person(second) == first


@dataclass
class Endpoint:
    """Answers with what it is given, in order, and notes what it was asked."""

    answers: list[Message]
    requests: list[tuple[Message, ...]] = field(default_factory=list)

    def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = (), temperature: float = 0.0
    ) -> Any:
        self.requests.append(tuple(messages))
        return SimpleNamespace(message=self.answers.pop(0))


def model_user(endpoint: Endpoint, memory: Memory | None = None) -> ModelUser:
    return ModelUser(model=endpoint, prompt="You play a user.", tools=(), temperature=0.0, memory=memory or Memory())


def test_a_model_user_sees_the_roles_the_other_way_round() -> None:
    endpoint = Endpoint([asked("I cannot surf.")])
    call = did("run_speed_test")
    assert model_user(endpoint).say([asked("Hi!"), user_said("Hello"), call, saw("slow")]) == Said(
        text="I cannot surf."
    )
    assert endpoint.requests == [
        (
            Message(role="system", content="You play a user."),
            user_said("Hi!"),
            asked("Hello"),
            Message(role="assistant", content="", tool_calls=call.tool_calls),
            saw("slow"),
        )
    ]


def test_a_model_user_gives_a_replay_the_same_answer() -> None:
    memory = Memory()
    endpoint = Endpoint([asked("first"), asked("second"), asked("third")])
    assert model_user(endpoint, memory).say([asked("Hi!")]).text == "first"
    assert model_user(endpoint, memory).say([asked("Hi!")]).text == "first"
    assert model_user(endpoint, memory).say([asked("Hello!")]).text == "second"
    assert len(endpoint.requests) == 2


def test_a_memory_forgets_the_oldest() -> None:
    memory = Memory(size=2)
    for name in "abc":
        memory.put(name, Said(text=name))
    assert [memory.get(name) for name in "abc"] == [None, Said(text="b"), Said(text="c")]


def test_a_model_users_calls_come_without_its_text() -> None:
    call = ToolCall(name="run_speed_test", arguments={})
    answer = Message(role="assistant", content="One moment. ###STOP###", tool_calls=(call,))
    said = model_user(Endpoint([answer])).say([asked("Hi!")])
    assert said == Said(calls=(call,))
    assert not said.ends


@pytest.mark.parametrize(
    "answer", [asked("  "), Message(role="assistant", content="{", malformed="The tool call is not valid JSON")]
)
def test_a_model_user_that_says_nothing_is_the_infrastructures_failure(answer: Message) -> None:
    with pytest.raises(InfrastructureError, match=r"the user model"):
        model_user(Endpoint([answer])).say([asked("Hi!")])


def test_a_users_ids_and_opaque_fields_go_back_to_its_model():
    call = ToolCall(name="check", arguments={}, opaque={"id": "x9FgTz001"})
    endpoint = Endpoint(
        [Message(role="assistant", content="", tool_calls=(call,), opaque={"reasoning": "hm"}), user_said("ok")]
    )
    user = model_user(endpoint)
    opening = [asked("Please check.")]
    user.say(opening)
    user.say([*opening, did("check"), saw("fine")])
    message = endpoint.requests[1][2]
    assert (message.tool_calls[0].opaque, message.opaque) == ({"id": "x9FgTz001"}, {"reasoning": "hm"})
