"""Tasks, splits, prompts and tools are the benchmark's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from types import ModuleType

import pytest

from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment
from rti_exp.envs.tau2 import benchmark
from rti_exp.experiment.parts import default_environment
from tests.support.tau2_play import evaluator, task_of, world


@pytest.mark.parametrize(("domain", "train", "test"), [("telecom", 74, 40), ("retail", 74, 40), ("airline", 30, 20)])
def test_the_official_splits(domain: str, train: int, test: int) -> None:
    environment = default_environment("tau2_telecom", domain=domain)
    known = environment._domain
    assert isinstance(environment, Environment)
    for split, official, size in (("train", "train", train), ("heldout", "test", test)):
        tasks = environment.tasks(split)
        assert len(tasks) == size
        assert {task.payload["task"] for task in tasks} == set(known.splits[official])
        assert {task.split for task in tasks} == {split}
    assert not {task.id for task in environment.tasks("train")} & {task.id for task in environment.tasks("heldout")}


def test_telecom_has_three_families_and_a_full_set() -> None:
    tasks = default_environment("tau2_telecom", domain="telecom", train_split="full").tasks("train")
    assert len(tasks) == len({task.id for task in tasks}) == 2285
    base = Counter(task.family for task in world("telecom").tasks("train"))
    assert base == {"mobile_data_issue": 36, "mms_issue": 49, "service_issue": 29}


def test_mock_has_nine_tasks_and_what_is_picked_of_them() -> None:
    assert len(world("mock").tasks("train")) == 9
    picked = default_environment(
        "tau2_telecom",
        domain="mock",
        train_split="base",
        heldout_split="base",
        only=["update_task_1", "create_task_1"],
        max_turns=3,
    )
    assert [task.id for task in picked.tasks("heldout")] == ["mock/create_task_1", "mock/update_task_1"]
    assert picked.max_turns == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domain": "bank"}, "env.domain='bank': must be one of airline, mock, retail, telecom"),
        ({"user": "nobody"}, "env.user='nobody': must be one of scripted, model, solo"),
        ({"domain": "retail", "user": "solo"}, "env.user='solo': the benchmark has it in mock and telecom"),
        ({"user": "model", "user_model": None}, "env.user_model: must name the endpoint"),
        ({"user": "model", "user_model": {"modle": "x"}}, "env.user_model.modle: unknown key"),
        ({"max_errors": 0}, "env.max_errors=0: must be an integer >= 1"),
        ({"train_split": "tran"}, "env.train_split='tran': must be one of"),
        ({"only": ["x"]}, "env.only: no task 'x' in telecom"),
    ],
)
def test_invalid_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        default_environment("tau2_telecom", **options)
    assert str(error.value).startswith(message)


def test_an_unknown_split() -> None:
    with pytest.raises(ValueError, match="no split 'test'"):
        world("mock").tasks("test")


def test_without_the_package_the_message_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['tau2'] = None\n"
        "from rti_exp.experiment.parts import default_environment\n"
        "assert not {'torch', 'loguru'} & set(sys.modules)\n"
        "try:\n    default_environment('tau2_mock')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SettingsError env=tau2_mock needs the package tau2: pip install 'rti-exp[tau2]' && ")
    assert done.stderr == ""


def test_the_package_says_nothing_and_reads_no_env_file(tmp_path) -> None:
    (tmp_path / ".env").write_text("LEAKED_BY_DOTENV=1\n")
    code = (
        "import os\nfrom rti_exp.experiment.parts import default_environment\n"
        "world = default_environment('tau2_mock')\n"
        "world.start(world.tasks('train')[0])\n"
        "assert 'LEAKED_BY_DOTENV' not in os.environ and 'PYTHON_DOTENV_DISABLED' not in os.environ\n"
        "import sys; assert not {'litellm', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def modules() -> tuple[ModuleType, ModuleType]:
    evaluator()
    import tau2.agent.llm_agent as agent  # pyright: ignore[reportMissingImports]
    import tau2.user.user_simulator as user  # pyright: ignore[reportMissingImports]

    return agent, user


@pytest.mark.parametrize("domain", ["mock", "telecom", "retail", "airline"])
def test_the_policy_sees_what_the_benchmarks_agent_sees(domain: str) -> None:
    agent, _ = modules()
    official = world(domain)._domain.environment()
    theirs = agent.LLMAgent(tools=official.get_tools(), domain_policy=official.get_policy())
    episode = world(domain).start(world(domain).tasks("train")[0])
    assert episode.messages[0].role == "system"
    assert episode.messages[0].content == theirs.system_prompt
    assert [message.role for message in episode.messages[1:]] == ["assistant", "user"]
    assert list(episode.tools) == [tool.openai_schema["function"] for tool in theirs.tools]


@pytest.mark.parametrize("domain", ["mock", "telecom"])
def test_solo_sees_what_the_benchmarks_solo_agent_sees(domain: str) -> None:
    agent, _ = modules()
    environment = default_environment(
        "tau2_telecom", domain=domain, user="solo", train_split="base", heldout_split="base"
    )
    tasks = {task.payload["task"]: task for task in environment.tasks("train")}
    known = benchmark.domain(domain)
    valid = [name for name in known.splits["base"] if agent.LLMSoloAgent.check_valid_task(known.tasks[name])]
    assert set(tasks) == {name for name in valid if known.tasks[name].ticket}
    name = sorted(tasks)[0]
    official = known.environment(solo_mode=True)
    tools = official.get_tools() + (official.get_user_tools() if official.user_tools else [])
    theirs = agent.LLMSoloAgent(tools=tools, domain_policy=official.get_policy(), task=known.tasks[name])
    episode = environment.start(tasks[name])
    assert [message.content for message in episode.messages] == [theirs.system_prompt]
    assert list(episode.tools) == [tool.openai_schema["function"] for tool in theirs.tools]


@pytest.mark.parametrize("domain", ["mock", "telecom", "retail"])
def test_a_model_user_gets_the_prompt_of_the_benchmarks_user(domain: str) -> None:
    _, user = modules()
    known = benchmark.domain(domain)
    task = known.tasks[known.splits["base"][0]]
    environment = known.environment()
    tools = environment.get_user_tools() if environment.user_tools is not None else None
    theirs = user.UserSimulator(tools=tools, instructions=str(task.user_scenario))
    assert known.user_prompt(str(task.user_scenario)) == theirs.system_prompt


def test_the_agent_of_telecom_has_no_tool_of_the_users() -> None:
    known = benchmark.domain("telecom")
    agent, user = ({tool["name"] for tool in known.tools(side)} for side in ("agent", "user"))
    assert (len(agent), len(user)) == (13, 30)
    assert not agent & user
    assert "run_speed_test" in user
    assert len(known.tools("solo")) == 13 + 30 + 1
    assert task_of("telecom", known.splits["base"][0]).id.startswith("telecom/[")
