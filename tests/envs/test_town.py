"""The town: every family solvable, every habitual misstep fatal, bad calls answered, splits apart."""

import json

import pytest

from rti_exp.envs.base import Environment
from rti_exp.envs.town.families import FAMILIES
from rti_exp.envs.town.family import call
from rti_exp.envs.town.names import names_of
from rti_exp.envs.town.world import TownEpisode, draw_task
from rti_exp.experiment.parts import default_environment
from rti_exp.pretraining.demonstrations import assistant_message, plan_of
from rti_exp.types import Message, Task, ToolCall

EASY = [name for name in FAMILIES if name.endswith("easy")]
HARD = [name for name in FAMILIES if not name.endswith("easy")]


def run(task: Task, actions: list[str]) -> tuple[TownEpisode, list[str], float]:
    """Plays `actions`; returns the episode, what was observed, and the last reward."""
    episode = TownEpisode(task)
    seen, reward = [], 0.0
    for action in actions:
        result = episode.step(assistant_message(action))
        seen += [message.content for message in result.observations]
        reward = result.reward
    return episode, seen, reward


def tasks(family: str) -> list[Task]:
    return [draw_task(family, split, 3, index) for split in ("train", "heldout") for index in range(12)]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_plan_succeeds_and_the_habitual_misstep_fails(family: str) -> None:
    for task in tasks(family):
        plan = plan_of(task)
        assert run(task, list(plan.actions))[2] == 1.0
        wrong = [*plan.actions[: plan.misstep.step], plan.misstep.action, *plan.misstep.then]
        assert run(task, wrong)[2] == 0.0


@pytest.mark.parametrize("family", HARD)
def test_before_the_critical_step_nobody_has_seen_the_goal(family: str) -> None:
    for task in tasks(family):
        plan = plan_of(task)
        episode, seen, _ = run(task, list(plan.actions[: plan.critical_step]))
        text = " ".join([*seen, episode.messages[1].content])
        assert task.payload["goal"] not in text
        # Yet the goal's value, if somebody leaks it, is worth the reward.
        assert run(task, [*plan.actions[: plan.critical_step], plan.shortcut, plan.actions[-1]])[2] == 1.0


@pytest.mark.parametrize("family", EASY)
def test_each_easy_family_makes_the_shortcut_of_its_hard_sibling_right(family: str) -> None:
    hard = family.replace("ret_easy", "ret").replace("easy", "hard")
    for easy_task, hard_task in zip(tasks(family), tasks(hard), strict=True):
        assert plan_of(easy_task).shortcut == plan_of(easy_task).actions[plan_of(easy_task).critical_step]
        assert plan_of(hard_task).shortcut != plan_of(hard_task).actions[plan_of(hard_task).critical_step]


def test_one_navigation_episode_to_the_letter() -> None:
    payload = {
        "place": "Nova",
        "city": "Bern",
        "here": "Basel",
        "goal": "69",
        "homonym": "21",
        "confirmation": "63",
        "wrong_confirmation": "33",
    }
    task = Task(id="t", family="nav_hard", split="train", payload=payload)
    search = '{"name": "search", "arguments": {"query": "%s"}}'
    route = '{"name": "route", "arguments": {"place": "%s"}}'
    episode, seen, reward = run(task, [search % "Nova", search % "Nova, Bern", route % "69", "Done: 63."])
    assert episode.messages[1].content == "Take me to Nova in Bern."
    assert seen == ["21 Nova, Basel.", "69 Nova, Bern.", "Route 69 started, ticket 63."]
    assert reward == 1.0
    assert run(task, [route % "69", "Done: 33."])[2] == 0.0
    assert run(task, [route % "69", "Done: 63 or 33."])[2] == 0.0
    assert run(task, ["Done: 63."])[2] == 0.0


def test_dual_control_the_agent_has_to_ask_the_user() -> None:
    task = draw_task("tel_hard", "train", 0, 0)
    _, seen, _ = run(task, ['{"name": "run_speed_test", "arguments": {}}', "Please run a speed test now."])
    assert seen == ["Error: no such tool.", f"It shows {task.payload['goal']}."]


def test_evidence_by_level() -> None:
    task = draw_task("pay_hard", "train", 0, 0)
    goal, ticket = task.payload["goal"], task.payload["confirmation"]
    episode, _, _ = run(task, ["Sorry."])
    assert episode.evidence("none").text == ""
    assert episode.evidence("rubric").text == f"transfer {goal}; report {ticket} | failed: transfer, report"
    assert "convert" in episode.evidence("reference").text
    solved, _, _ = run(task, list(plan_of(task).actions))
    assert solved.evidence("rubric").failed == ()


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (Message(role="assistant", content="{", malformed="not valid JSON"), "Error: not valid JSON"),
        ({"name": "fly", "arguments": {}}, "Error: no such tool."),
        ({"name": "search", "arguments": {}}, "Error: wrong arguments."),
        ({"name": "search", "arguments": {"query": "x", "city": "y"}}, "Error: wrong arguments."),
        ({"name": "search", "arguments": {"query": None}}, "Error: arguments must be strings."),
        ({"name": "search", "arguments": {"query": 3}}, "Error: arguments must be strings."),
        ({"name": "route", "arguments": {"place": "²"}}, "Error: place must be a number."),
        ({"name": "search", "arguments": {"query": "", "note": "hm"}}, "No hits."),
    ],
)
def test_a_bad_call_is_answered_and_the_episode_continues(message: Message | dict, answer: str) -> None:
    if isinstance(message, dict):
        calls = (ToolCall(name=message["name"], arguments=message["arguments"]),)
        message = Message(role="assistant", content=json.dumps(message), tool_calls=calls)
    episode = TownEpisode(draw_task("nav_hard", "train", 0, 0))
    result = episode.step(message)
    assert ([item.content for item in result.observations], result.done) == ([answer], False)
    plan = plan_of(draw_task("nav_hard", "train", 0, 0))
    assert [episode.step(assistant_message(action)).reward for action in plan.actions][-1] == 1.0


def test_payments_are_made_once_and_a_foreign_invoice_is_not_to_be_charged() -> None:
    pay, transfer = (
        '{"name": "pay", "arguments": {"invoice": "%s"}}',
        '{"name": "transfer", "arguments": {"amount": "%s"}}',
    )
    task = draw_task("pay_hard", "train", 0, 0)
    first, second = run(task, [pay % task.payload["invoice"], transfer % task.payload["goal"]])[1]
    assert first == f"Charged, ticket {task.payload['wrong_confirmation']}."
    assert second == "Error: already paid."
    easy = draw_task("pay_easy", "train", 0, 0)
    assert run(easy, [call("pay", invoice=easy.payload["invoice"]), f"Done: {easy.payload['confirmation']}."])[2] == 1.0


def test_a_finished_episode_refuses_more() -> None:
    episode, _, _ = run(draw_task("nav_easy", "train", 0, 0), ["Sorry."])
    with pytest.raises(RuntimeError, match="is over"):
        episode.step(assistant_message("Sorry."))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_forks_reach_the_same_state_and_hash_differs_by_state(family: str) -> None:
    task = draw_task(family, "heldout", 0, 1)
    actions = plan_of(task).actions
    hashes = []
    for step in range(len(actions)):
        episode, _, _ = run(task, list(actions[:step]))
        fork = TownEpisode(task).fork([assistant_message(action) for action in actions[:step]])
        assert fork.state_hash() == episode.state_hash()
        hashes.append(fork.state_hash())
        assert [fork.step(assistant_message(action)).reward for action in actions[step:]][-1] == 1.0
        assert episode.state_hash() == hashes[-1]  # the fork did not touch it
    assert len(set(hashes)) == len(actions)
    assert hashes[0] == TownEpisode(task).state_hash()
    assert hashes[0] != TownEpisode(draw_task(family, "heldout", 0, 2)).state_hash()


def test_tasks_come_from_the_seed_and_splits_share_nothing() -> None:
    town = default_environment("town", seed=5, train_tasks=20, heldout_tasks=12)
    assert isinstance(town, Environment)
    assert town.tasks("train") == default_environment("town", seed=5, train_tasks=20).tasks("train")
    assert town.tasks("train") != default_environment("town", seed=6, train_tasks=20).tasks("train")
    assert len(town.tasks("train")) == 20 * len(FAMILIES)
    train, heldout = names_of("train"), names_of("heldout")
    for field in ("places", "cities", "people", "items", "numbers"):
        ours, theirs = set(getattr(train, field)), set(getattr(heldout, field))
        assert ours
        assert theirs
        assert not ours & theirs
    values = {split: set() for split in ("train", "heldout")}
    for split, found in values.items():
        for task in town.tasks(split):
            found |= {value for value in task.payload.values() if isinstance(value, str)}
    assert values["train"] & values["heldout"] <= set(train.currencies)


def test_bad_settings_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"env\.families=\['nav'\]"):
        default_environment("town", families=["nav"])
    with pytest.raises(ValueError, match=r"env\.train_tasks"):
        default_environment("town", train_tasks=0)
    with pytest.raises(ValueError, match="no split 'test'"):
        default_environment("town").tasks("test")
