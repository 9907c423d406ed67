"""One conversation: what the policy sees, errors, limits, forks, evidence, and what breaks."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Sequence

import pytest

from rti_exp.envs.base import InfrastructureError, StepResult
from rti_exp.envs.tau2 import benchmark
from rti_exp.envs.tau2.episode import GREETING, Rules, Tau2Episode
from rti_exp.envs.tau2.records import CopyOnRead
from rti_exp.envs.tau2.users import Said
from rti_exp.experiment.parts import default_environment
from rti_exp.types import Message, ToolCall
from tests.support.tau2_play import (
    CREATE,
    ROAMING,
    UNSCORED,
    benchmark_task,
    gold_turns,
    official_reward,
    play,
    random_turns,
    say,
    start,
    task_of,
    use,
    world,
)

TITLE = "Important Meeting"


def observed(result: StepResult) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in result.observations]


def test_an_episode_from_its_opening_to_its_reward() -> None:
    episode = start()
    assert [message.role for message in episode.messages] == ["system", "assistant", "user"]
    assert episode.messages[1].content == GREETING
    assert "Create a new task called 'Important Meeting' for user_1." in episode.messages[2].content
    result = episode.step(use("create_task", user_id="user_1", title=TITLE))
    created = {"task_id": "task_2", "title": TITLE, "description": None, "status": "pending"}
    assert [(role, json.loads(text)) for role, text in observed(result)] == [("tool", created)]
    assert not result.done
    result = episode.step(say("Shall I do anything else?"))
    assert observed(result) == [("user", "Yes, please.")]
    result = episode.step(say("The task is there."))
    assert observed(result) == [("user", "Thank you. ###STOP###")]
    assert (result.done, result.reward, dict(result.reward_parts)) == (True, 1.0, {"DB": 1.0, "COMMUNICATE": 1.0})
    assert episode.ending == "user_stop"
    with pytest.raises(RuntimeError, match="is over"):
        episode.step(say("Hello?"))


def test_a_tools_result_has_no_escapes_and_the_benchmarks_own_transcript_does() -> None:
    """The benchmark compares its own text; the policy reads the letters."""
    episode = start()
    result = episode.step(use("create_task", user_id="user_1", title="Zürich"))
    assert '"title": "Zürich"' in result.observations[0].content
    assert "Z\\u00fcrich" in episode.transcript[-1].content


def test_a_history_of_the_tasks_own_is_part_of_the_opening() -> None:
    episode = start(task_of("mock", "update_task_with_message_history"))
    assert [message.role for message in episode.messages] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    call = episode.messages[2]
    assert call.tool_calls[0].name == "create_task"
    assert json.loads(call.content) == {"name": "create_task", "arguments": dict(call.tool_calls[0].arguments)}
    result = episode.step(use("update_task_status", task_id="task_2", status="completed"))
    assert json.loads(result.observations[0].content)["status"] == "completed"
    assert episode.step(say("Done.")).reward == 1.0


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        (use("run_speed_test"), "Error: Tool 'run_speed_test' not found."),
        (use("create_task", user_id="nobody", title="x"), "Error: User nobody not found"),
        (use("get_users", requestor="user", tool_name="x", self=1), None),
        (use("create_task", user_id=["user_1"], title={"a": None}), None),
        (
            Message(role="assistant", content="{", malformed="The tool call is broken."),
            "Error: The tool call is broken.",
        ),
        (say(" \n"), "Error: The message is empty. Write to the user, or call a tool."),
    ],
)
def test_a_bad_turn_is_answered_with_an_error_and_the_episode_continues(turn: Message, answer: str | None) -> None:
    episode = start()
    result = episode.step(turn)
    [(role, text)] = observed(result)
    assert (role, result.done) == ("tool", False)
    assert text.startswith("Error: ") if answer is None else text == answer
    episode.step(use("create_task", user_id="user_1", title=TITLE))
    assert episode.step(say("Done.")).reward == 1.0


def test_several_calls_of_a_turn_are_answered_one_by_one() -> None:
    calls = tuple(ToolCall(name="get_users", arguments={}) for _ in range(3))
    result = start().step(Message(role="assistant", content="Let me see.", tool_calls=calls))
    assert [role for role, _ in observed(result)] == ["tool"] * 3


def test_a_readable_call_is_carried_out_though_another_of_the_turn_is_broken() -> None:
    episode = start()
    turn = use("create_task", user_id="user_1", title=TITLE)
    result = episode.step(dataclasses.replace(turn, malformed="Call 2 is broken."))
    [(_, created), error] = observed(result)
    assert TITLE in created
    assert error == ("tool", "Error: Call 2 is broken.")
    assert episode.step(say("Done.")).reward == 1.0


def test_text_next_to_a_call_is_not_delivered() -> None:
    task = task_of("mock", "update_task_with_initialization_data")
    information = " ".join(benchmark_task("mock", task).evaluation_criteria.communicate_info)
    call = use("update_task_status", task_id="task_2", status="completed")
    for spoken, reward in ((False, 0.0), (True, 1.0)):
        episode = start(task)
        episode.step(call if spoken else dataclasses.replace(call, content=information))
        result = episode.step(say(information if spoken else "Done."))
        assert (result.reward, dict(result.reward_parts)) == (reward, {"DB": 1.0, "COMMUNICATE": reward})


@pytest.mark.parametrize(
    ("rules", "turns", "ending"),
    [
        ({"max_errors": 2}, [use("no_such_tool")] * 2, "too_many_errors"),
        ({"max_errors": 1}, [say("")], "too_many_errors"),
        # The opening's user message is step 1, a call and its answer are two.
        ({"max_steps": 5}, [use("get_users")] * 2, "max_steps"),
        ({"max_steps": 3}, [say("Shall I?")], "max_steps"),
    ],
)
def test_the_benchmarks_limits_end_an_episode_without_reward(
    rules: dict[str, int], turns: Sequence[Message], ending: str
) -> None:
    episode = start(CREATE, **rules)
    results = [episode.step(turn) for turn in turns]
    assert [result.done for result in results] == [False] * (len(turns) - 1) + [True]
    assert (results[-1].reward, dict(results[-1].reward_parts)) == (0.0, {})
    assert episode.ending == ending
    assert official_reward("mock", episode, benchmark_task("mock", CREATE)) == (0.0, {})


@pytest.mark.parametrize("domain", ["mock", "telecom"])
def test_a_fork_stands_where_the_original_stood_after_any_turns(domain: str) -> None:
    tasks = [task for task in world(domain).tasks("train")[:12] if not task.id.endswith(UNSCORED)]
    for task in tasks:
        turns = random_turns(domain, benchmark_task(domain, task), seed=7)[:10]
        episode = start(task)
        hashes = [episode.state_hash()]
        for turn in turns:
            if episode.step(turn).done:
                break
            hashes.append(episode.state_hash())
        assert len(set(hashes)) == len(hashes)
        for step, expected in enumerate(hashes):
            if step % 3 == 0:
                fork = start(task).fork(turns[:step])
                assert fork.state_hash() == expected
                assert list(fork.messages) == list(episode.messages)


def test_the_benchmarks_own_replay_leads_to_the_same_records() -> None:
    task = task_of("telecom", ROAMING)
    known = benchmark_task("telecom", task)
    episode = start(task)
    play(episode, gold_turns(known))
    fresh = world("telecom")._domain.environment()
    fresh.set_state(None, known.initial_state.initialization_actions, list(episode.transcript))
    assert fresh.get_db_hash() == episode._environment.get_db_hash()
    assert fresh.get_user_db_hash() == episode._environment.get_user_db_hash()


def test_a_fork_leaves_its_origin_alone() -> None:
    origin = start()
    before = origin.state_hash()
    fork = origin.fork([use("create_task", user_id="user_1", title=TITLE)])
    assert origin.state_hash() == before != fork.state_hash()
    assert fork.step(say("Done.")).reward == 1.0


def test_a_new_bill_has_the_same_id_in_each_replay() -> None:
    task = task_of("telecom", ROAMING)
    turns = [
        use("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=2.0),
        use("get_bills_for_customer", customer_id="C1001"),
    ]
    first, second = start(task), start(task)
    answers = [[episode.step(turn).observations for turn in turns] for episode in (first, second)]
    assert answers[0] == answers[1]
    assert first.state_hash() == second.state_hash()
    first.evidence("rubric")  # the evaluator's replay finds the id too


def test_a_broken_vpn_of_one_phone_is_not_anothers() -> None:
    known = benchmark.domain("telecom")
    first, second = known.environment(), known.environment()
    first.user_tools.break_vpn()
    second.user_tools.connect_vpn()
    assert first.user_tools.device.vpn_details.server_performance.value == "poor"
    assert second.user_tools.device.vpn_details.server_performance.value == "excellent"


def test_reading_tools_and_the_evaluator_leave_shared_records_alone() -> None:
    known = benchmark.domain("retail")
    task = task_of("retail", "0")
    known.environment()
    before = known._databases["db"].get_hash()
    episode = start(task)
    assert isinstance(episode._environment.tools.db.orders, CopyOnRead)
    result = play(episode, gold_turns(benchmark_task("retail", task)))
    assert result.reward == 1.0
    assert episode._environment.get_db_hash() != before
    assert known._databases["db"].get_hash() == before


def test_records_that_are_read_are_copies() -> None:
    shared = {"a": [1], "b": [2], "c": [3]}
    records = CopyOnRead(shared)
    records["a"].append(0)
    assert records["a"] == [1, 0]
    records.get("b", []).append(0)
    for value in records.values():
        value.append(9)
    assert [value for _, value in records.items()] == [[1, 0, 9], [2, 0, 9], [3, 9]]
    assert records.pop("c") == [3, 9]
    assert records.pop("c", None) is None
    assert records.get("z", 7) == 7
    records["d"] = [4]
    assert records.copy() == {"a": [1, 0, 9], "b": [2, 0, 9], "d": [4]}
    assert shared == {"a": [1], "b": [2], "c": [3]}


def test_an_evaluator_that_raises_gives_no_reward() -> None:
    episode = start(task_of("mock", UNSCORED))
    with pytest.raises(InfrastructureError, match="the benchmark's evaluator raised ValueError: Task task_2 not found"):
        episode.step(say("I cannot."))


class Scripted:
    """A user who makes these moves, whatever is said."""

    def __init__(self, *moves: Said) -> None:
        self.moves = list(moves)

    def say(self, seen: Sequence[Message]) -> Said:
        return self.moves.pop(0) if len(self.moves) > 1 else copy.copy(self.moves[0])


def test_a_user_who_ends_at_once_or_never_speaks_is_the_infrastructures_failure() -> None:
    whole, known = world("telecom"), benchmark_task("telecom", task_of("telecom", ROAMING))
    call = Said(calls=(ToolCall(name="check_status_bar", arguments={}),))
    for user, message in ((Scripted(Said(text="###STOP###")), "before the agent"), (Scripted(call), "50 tool calls")):
        with pytest.raises(InfrastructureError, match=message):
            Tau2Episode(whole._domain, task_of("telecom", ROAMING), known, user, Rules(max_steps=1000))


def test_a_users_failed_calls_count_as_errors() -> None:
    whole, known = world("telecom"), benchmark_task("telecom", task_of("telecom", ROAMING))
    wrong = Said(calls=(ToolCall(name="no_such_tool", arguments={}),))
    user = Scripted(Said(text="Hello"), wrong, wrong, Said(text="It does not work."))
    episode = Tau2Episode(whole._domain, task_of("telecom", ROAMING), known, user, Rules(max_errors=2))
    result = episode.step(say("Please try."))
    assert (result.done, result.observations, episode.ending) == (True, (), "too_many_errors")


def solo(domain: str, name: str) -> Tau2Episode:
    environment = default_environment(
        "tau2_telecom", domain=domain, user="solo", train_split="base", heldout_split="base"
    )
    return environment.start(task_of(domain, name))


@pytest.mark.parametrize(("domain", "name"), [("mock", "create_task_1"), ("telecom", ROAMING)])
def test_solo_the_agent_has_all_tools_and_ends_with_done(domain: str, name: str) -> None:
    episode = solo(domain, name)
    assert [message.role for message in episode.messages] == ["system"]
    known = benchmark_task(domain, task_of(domain, name))
    for action in known.evaluation_criteria.actions:
        result = episode.step(use(action.name, **action.arguments))
        assert not result.done
        assert not result.observations[0].content.startswith("Error")
    result = episode.step(use("done"))
    assert (result.done, result.reward, result.observations, episode.ending) == (True, 1.0, (), "agent_stop")
    assert official_reward(domain, episode, known, solo=True) == (1.0, dict(result.reward_parts))


def test_solo_text_ends_the_episode_without_reward() -> None:
    episode = solo("mock", "create_task_1")
    episode.step(use("create_task", user_id="user_1", title=TITLE))
    result = episode.step(say("Done."))
    assert (result.done, result.reward, episode.ending) == (True, 0.0, "agent_error")
