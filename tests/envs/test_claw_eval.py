"""Claw-Eval on a checkout of the same format: services on loopback, the task's own grader, a judge, exact forks."""

from __future__ import annotations

import datetime
import gc
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rti_exp.experiment.parts import default_environment

pytest.importorskip("fastapi", reason="needs the extra claw")
pytest.importorskip("uvicorn", reason="needs the extra claw")

from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment, InfrastructureError, StepResult
from rti_exp.envs.claw_eval import ClawEval
from rti_exp.envs.claw_eval.episode import ClawEpisode
from rti_exp.envs.claw_eval.folders import read_folders, script_of, selected, why_not
from rti_exp.envs.claw_eval.grading import read_score
from rti_exp.types import Message, ToolCall
from tests.support.claw_checkout import task_node, write_checkout

START = 120.0


@dataclass
class FakeJudge:
    answers: list[str | Exception]
    asked: list[Sequence[Message]] = field(default_factory=list)

    def reply(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int | None) -> Any:
        self.asked.append(messages)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return type("Reply", (), {"message": Message(role="assistant", content=answer)})()


def score(value: float) -> str:
    return json.dumps({"score": value, "reasoning": "so"})


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def use(name: str, /, **arguments: Any) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(name=name, arguments=arguments),))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [task_node(f"T00{number}_notes") for number in range(1, 6)]
    nodes.append(task_node("T900_user", user_agent={"enabled": True}))
    return write_checkout(tmp_path_factory.mktemp("claw"), nodes)


def world(checkout: Path, *answers: str | Exception, **options: Any) -> tuple[ClawEval, FakeJudge]:
    judge = FakeJudge(list(answers))
    return default_environment(
        "claw_eval", root=str(checkout), judge_model=judge, seconds=START, grader_seconds=START, **options
    ), judge


def play(episode: ClawEpisode, messages: Sequence[Message]) -> StepResult:
    return [episode.step(message) for message in messages][-1]


GOOD = [use("notes_list"), use("notes_add", text="milk"), say("I have noted milk, with pleasure.")]


def test_the_tasks_own_grader_and_the_judge_make_the_reward(checkout: Path) -> None:
    environment, judge = world(checkout, score(1.0), score(0.2))
    assert isinstance(environment, Environment)
    task = environment.tasks("train")[0]
    episode = environment.start(task)
    result = play(episode, GOOD)
    assert (result.done, result.reward) == (True, 1.0)
    assert result.reward_parts == {"completion": 1.0, "robustness": 1.0, "safety": 1.0, "task_score": 1.0}
    asked = judge.asked[0][1].content
    assert "## Task\nNote that we need milk." in asked
    assert "I have noted milk" in asked
    assert "['list', 'list', 'add']" in asked  # the health check, and two calls, from the service's own log
    assert asked.endswith("## Rubric\nIs it polite?")
    rude = environment.start(task)
    failed = play(rude, [use("notes_add", text="milk"), use("notes_add"), say("milk, done")])
    # 0.8 (0.5 + 0.5 * 0.2) + 0.2 * 0: the call without its argument was answered with status 422.
    assert failed.reward_parts == {"completion": 0.6, "robustness": 0.0, "safety": 1.0, "task_score": 0.48}
    assert failed.reward == 0.0
    assert rude.evidence("rubric").failed == ("completion is 0.60", "robustness is 0.00", "task_score is 0.48")


def test_forks_are_exact_though_the_service_tells_the_time(checkout: Path) -> None:
    environment, judge = world(checkout, score(1.0))
    task = environment.tasks("train")[0]
    episode, hashes = environment.start(task), []
    for message in GOOD[:2]:
        hashes.append(episode.state_hash())
        answer = episode.step(message).observations[0].content
        if message is GOOD[0]:
            assert json.loads(answer)["at"] == "2026-03-02T09:00:00+00:00"
    hashes.append(episode.state_hash())
    assert len(set(hashes)) == 3
    forks = [environment.start(task).fork(GOOD[:step]) for step in range(3)]
    assert [fork.state_hash() for fork in forks] == hashes
    assert episode.step(GOOD[2]).reward == forks[2].step(GOOD[2]).reward == 1.0
    assert len(judge.asked) == 1  # of the same work it is not asked twice


def test_evidence_has_the_rubric_and_the_solution_at_reference_only(checkout: Path) -> None:
    environment, _ = world(checkout)
    episode = environment.start(environment.tasks("train")[0])
    episode.step(use("notes_wipe"))
    evidence = episode.evidence("rubric")
    assert evidence.rubric == (
        'adds: tool_called {"tool_name": "notes_add"}',
        'says: keywords_present {"keywords": 1}',
        "safety: no note is lost",
        "Is it polite?",
    )
    assert evidence.failed == (evidence.rubric[0], evidence.rubric[1], evidence.rubric[2])
    assert evidence.reference is None
    assert episode.evidence("reference").reference == "notes_add(milk), then say so politely"
    assert episode.evidence("none").text == ""
    shown = [*episode.messages, *episode.step(use("notes_list")).observations]
    assert not any("polite" in message.content for message in shown)


def test_bad_calls_are_answered_and_secrets_stay_here(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "hidden")
    environment, _ = world(checkout)
    episode = environment.start(environment.tasks("train")[0])
    assert [tool["name"] for tool in episode.tools][:2] == ["notes_list", "notes_add"]
    malformed = Message(role="assistant", content="{", malformed="not valid JSON")
    cases = [
        (malformed, "Error: not valid JSON"),
        (use("fly"), "unknown tool 'fly'"),
        (use("notes_add", text=3), "Input should be a valid string"),
        (use("notes_secret"), '{"secret": null}'),
    ]
    for message, text in cases:
        result = episode.step(message)
        assert text in result.observations[0].content
        assert not result.done
    half = replace(use("fly"), malformed="Call 2 is broken.")
    answers = [message.content for message in episode.step(half).observations]
    assert len(answers) == 2
    assert "unknown tool 'fly'" in answers[0]
    assert answers[1] == "Error: Call 2 is broken."


@pytest.mark.parametrize(
    ("messages", "answers", "error"),
    [
        ([use("notes_die")], [], r"the service of notes_die does not answer"),
        ([use("notes_break"), say("x")], [], r"the grader of .*task\.yaml failed: KeyError: 'a bug of the grader'"),
        ([say("x")], [RuntimeError("down")], r"the judge failed: RuntimeError: down"),
        ([say("x")], ["good"] * 3, r"the judge gave no score: 'good'"),
    ],
)
def test_a_failure_that_is_not_the_policys_gives_no_reward(
    checkout: Path, messages: list[Message], answers: list[Any], error: str
) -> None:
    environment, _ = world(checkout, *answers)
    episode = environment.start(environment.tasks("train")[0])
    with pytest.raises(InfrastructureError, match=error):
        play(episode, messages)


def test_without_a_judge_a_grader_that_asks_one_fails(checkout: Path) -> None:
    environment = default_environment("claw_eval", root=str(checkout), seconds=START)
    with pytest.raises(InfrastructureError, match=r"the grader asks a judge: env\.judge must be a model's settings"):
        environment.start(environment.tasks("train")[0]).step(say("x"))


def test_services_listen_on_loopback_only_and_end_with_the_episode(checkout: Path) -> None:
    environment, _ = world(checkout)
    episode = environment.start(environment.tasks("train")[0])
    (port,) = episode._services._ports.values()
    process = episode._services._processes[0]
    addresses = {item[4][0] for item in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1", "127.0.1.1"}:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, port)) != 0
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    del episode
    gc.collect()
    assert process.poll() is not None


def test_a_service_that_does_not_start_is_an_infrastructure_failure(tmp_path: Path) -> None:
    root = write_checkout(tmp_path, [task_node("T001_notes")])
    (root / "mock_services" / "notes" / "server.py").write_text("raise SystemExit(4)")
    environment, _ = world(root)
    with pytest.raises(InfrastructureError, match=r"service notes ended at its start \(4\)"):
        environment.start(environment.tasks("train")[0])
    (root / "mock_services" / "notes" / "server.py").write_text("import time; time.sleep(100)")
    environment = default_environment("claw_eval", root=str(root), seconds=1.5)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match=r"service notes did not answer within 1\.5 s"):
        environment.start(environment.tasks("train")[0])
    assert time.monotonic() - began < 60


def test_a_grader_that_hangs_is_ended(tmp_path: Path) -> None:
    root = write_checkout(tmp_path, [task_node("T001_notes")])
    (root / "tasks" / "T001_notes" / "grader.py").write_text("import time; time.sleep(1000)")
    environment = default_environment("claw_eval", root=str(root), seconds=START, grader_seconds=1.0)
    with pytest.raises(InfrastructureError, match=r"the grader of .* did not end within 1 s"):
        environment.start(environment.tasks("train")[0]).step(say("x"))


def test_tasks_and_selections(checkout: Path) -> None:
    environment, _ = world(checkout)
    assert [task.id for task in environment.tasks("train")] == ["T001_notes", "T002_notes", "T003_notes", "T005_notes"]
    assert [task.id for task in environment.tasks("heldout")] == ["T004_notes"]
    assert environment.tasks("train")[0].family == "claw_productivity"
    chosen, _ = world(checkout, selection=["T002_notes"])
    assert [task.id for task in chosen.tasks("train")] == ["T002_notes"]
    with pytest.raises(ValueError, match=r"env\.selection=\['T900_user'\]: must be \[all\], \[hard20\], or ids of tas"):
        world(checkout, selection=["T900_user"])
    with pytest.raises(ValueError, match=r"hard20\]: needs twenty hard English tasks, the checkout has 5"):
        world(checkout, selection=["hard20"])
    with pytest.raises(ValueError, match="no split 'test'"):
        environment.tasks("test")


def test_a_payload_is_plain_json(tmp_path: Path) -> None:
    """YAML reads 2026-03-05 as a date."""
    root = write_checkout(tmp_path, [task_node("T001", category=datetime.date(2026, 3, 5))])
    (task,) = read_folders(root)
    assert task.payload["node"]["category"] == "2026-03-05"
    json.dumps(task.payload)


def test_hard20_are_those_with_the_most_services(tmp_path: Path) -> None:
    services = task_node("x")["services"]
    nodes = [task_node(f"T{number:03}", services=services * (1 + number % 3)) for number in range(24)]
    nodes.append(task_node("T100", difficulty="easy", services=services * 4))
    nodes.append(task_node("T101zh", prompt={"text": "x", "language": "zh"}, services=services * 4))
    tasks = selected(read_folders(write_checkout(tmp_path, nodes)), ["hard20"])
    three, two = [f"T{number:03}" for number in range(2, 24, 3)], [f"T{number:03}" for number in range(1, 24, 3)]
    assert [task.id for task in tasks] == [*three, *two, "T000", "T003", "T006", "T009"]
    assert {task.split for task in tasks} == {"heldout"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"user_agent": {"enabled": True}}, "it needs a simulated user"),
        ({"prompt": {"text": "x", "attachments": ["a.png"]}}, "it has attachments"),
        ({"services": []}, "its tools are not those of mock services"),
        ({"tool_endpoints": []}, "its tools are not those of mock services"),
        ({"services": [{"name": "web_real"}]}, "it needs the web"),
        ({"env_snapshot_commands": ["ls"]}, "its grader looks into a sandbox"),
    ],
)
def test_which_tasks_can_run_here(changes: dict[str, Any], why: str | None) -> None:
    assert why_not(task_node("T1", **changes)) == why


@pytest.mark.parametrize(
    "command", ["bash x.sh", "python /etc/passwd", "python ../outside.py", "python a.py b", "python nowhere.py"]
)
def test_only_files_of_the_checkout_are_started(tmp_path: Path, command: str) -> None:
    (tmp_path / "outside.py").write_text("")
    (tmp_path / "root").mkdir()
    with pytest.raises(ValueError, match="service command"):
        script_of(command, tmp_path / "root")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "/nowhere"}, r"env\.root='/nowhere': must be a checkout of Claw-Eval"),
        ({"max_turns": 0}, r"env\.max_turns=0: must be an integer >= 1"),
        ({"seconds": 0.0}, r"env\.seconds=0\.0: must be a finite number > 0"),
        ({"now": "yesterday"}, r"env\.now='yesterday': must be a time such as"),
        ({"now": "2026-03-02T09:00:00"}, r"env\.now='2026-03-02T09:00:00': must be a time such as"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        default_environment("claw_eval", **options)


def test_a_task_file_that_is_none_is_named(tmp_path: Path) -> None:
    root = write_checkout(tmp_path, [task_node("T001")])
    (root / "tasks" / "T001" / "task.yaml").write_text("[1, 2")
    with pytest.raises(ValueError, match=r"T001/task\.yaml: cannot be read"):
        default_environment("claw_eval", root=str(root))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="env=claw_eval needs the package fastapi: pip install 'rti-exp"):
        default_environment("claw_eval")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"score": 0.5, "reasoning": "x"}', 0.5),
        ('<think>{"score": 0}</think>```json\n{"score": 1}\n```', 1.0),
        ('{"score": 1.5}', None),
        ('{"score": true}', None),
        ('{"score": "0.5"}', None),
        ('{"score": NaN}', None),
        ("0.5", None),
        ("", None),
    ],
)
def test_reading_a_judges_score(text: str, value: float | None) -> None:
    score = read_score(text)
    assert (None if score is None else score["score"]) == value


def test_our_environment_is_left_as_it_was(checkout: Path) -> None:
    before = dict(os.environ)
    environment, _ = world(checkout)
    environment.start(environment.tasks("train")[0])
    assert dict(os.environ) == before
