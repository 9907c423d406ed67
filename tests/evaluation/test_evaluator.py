"""`python -m rti_exp.evaluate` with rollouts: numbers, files, resume, shards, remote policies."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.paths import assets_root
from rti_exp.config.settings import SettingsError
from rti_exp.evaluate import main, notes
from rti_exp.evaluation.pass_rates import estimates, missing_samples, task_rows
from rti_exp.evaluation.rollout_files import EvaluationFolder
from rti_exp.experiment.trainer import device_of, precision_context
from rti_exp.runs import read_lines
from rti_exp.types import Task
from tests.support.fakes import GuessWorld, right_texts, wrong_texts
from tests.support.faulty_server import FaultyServer, completion

WORLD = ("~env", f"+env._target_={__name__}.World")
TASKS = {task.payload["box"]: task for task in GuessWorld().tasks("heldout")}  # boxes e to h


IMPATIENT = (
    "policy.remote.read_seconds=0.5",
    "policy.remote.patience_seconds=3",
    "policy.remote.concurrency=2",
)


class World(GuessWorld):
    def __init__(self) -> None:
        super().__init__()


def answer(body: dict[str, Any], *, native: bool, right: str = "ef") -> dict[str, Any]:
    """The answer of a policy that opens the boxes in `right` and takes a wrong key for the others."""
    messages = body["messages"]
    box = next(message["content"] for message in messages if message["role"] == "user").removeprefix("box ")[0]
    texts = (right_texts if box in right else wrong_texts)(TASKS[box])
    text = texts[sum(message["role"] == "assistant" for message in messages)]
    if not (native and text.startswith("{")):
        return completion(text)
    call = json.loads(text)
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    calls = [{"id": "x", "type": "function", "function": function}]
    return completion(None, message={"tool_calls": calls}, finish_reason="tool_calls")


def arguments(server: FaultyServer, *more: str) -> list[str]:
    return [
        "policy=remote",
        f"policy.remote.base_url={server.base_url}",
        "policy.remote.model=teacher",
        "policy.remote.cache=null",
        "policy.remote.first_wait_seconds=0.01",
        "policy.remote.max_wait_seconds=0.5",
        "policy.remote.attempts=2",
        *WORLD,
        "tasks_per_iteration=4",
        "eval.tasks=4",
        "eval.samples=2",
        "eval.temperature=0",
        "out=out",
        *more,
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path))


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


needs_client = pytest.mark.skipif(find_spec("openai") is None, reason="the extra `remote` is not installed")


@needs_client
@pytest.mark.parametrize("native", [True, False], ids=["native calls", "calls as text"])
def test_a_remote_policy(native: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["policy.tool_calls=native" if native else "policy.tool_calls=text", "policy.system=hello"]
    with FaultyServer(answer=lambda body: answer(body, native=native)) as server:
        assert main(arguments(server, *more)) == 0
        assert len(server.requests) == 4 * 2 * 3
        first = server.requests[0]
        assert ("tools" in first) is native
        assert first["messages"][0]["role"] == "system"
        assert first["messages"][0]["content"].startswith("hello")
        assert ("To call a tool" in first["messages"][0]["content"]) is not native
        printed = capsys.readouterr()
        # A rerun asks nothing; more samples ask for what is missing.
        assert main(arguments(server, *more)) == 0
        assert len(server.requests) == 24
        assert main(arguments(server, *more, "eval.samples=3")) == 0
        assert len(server.requests) == 36
    assert (
        "24 answers (0 from the cache), 24 tries, 0 requests lost, 168 prompt and 72 completion tokens" in printed.err
    )
    assert "8 of 8 rollouts" in printed.out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["estimates"]["pass@1"]["value"] == 0.5
    assert result["estimates"]["pass^3"]["value"] == 0.5
    assert [(row["task_id"], row["successes"]) for row in lines(tmp_path / "out" / "tasks.jsonl")] == [
        ("box_4", 3), ("box_5", 3), ("box_6", 0), ("box_7", 0),
    ]  # fmt: skip
    row = next(row for row in lines(tmp_path / "out" / "rollouts-0of1.jsonl") if row["task_id"] == "box_4")
    assert (row["status"], row["reward"], row["turns"]) == ("ok", 1.0, 3)
    assert row["messages"][0]["tool_calls"] == [{"name": "take", "arguments": {"key": TASKS["e"].payload["key"]}}]
    assert row["messages"][-1]["content"] == TASKS["e"].payload["code"]


@needs_client
def test_too_few_held_out_tasks_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer(answer=lambda body: answer(body, native=True)) as server:
        assert main(arguments(server, "eval.tasks=5", "eval.samples=1")) == 0
    printed = capsys.readouterr()
    assert "warning: eval.tasks=5, but there are only 4 held-out tasks; all of them are used\n" in printed.err
    assert "4 of 4 rollouts" in printed.out


@needs_client
def test_lost_rollouts_are_counted_excluded_and_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = True

    def fault(body: dict[str, Any]) -> str:
        return "400" if broken and "box g" in json.dumps(body) else "ok"

    with FaultyServer(fault, lambda body: answer(body, native=True)) as server:
        assert main(arguments(server)) == 0  # 2 of 8: not more than limits.env_failures
        assert "2 lost to the infrastructure" in capsys.readouterr().out
        result = json.loads((tmp_path / "out" / "result.json").read_text())
        assert (result["infrastructure_failures"], result["rollouts"]) == (2, 8)
        assert result["estimates"]["pass@1"] == {**result["estimates"]["pass@1"], "value": 2 / 3, "tasks": 3}
        asked, broken = len(server.requests), False
        assert main(arguments(server)) == 0
        assert len(server.requests) == asked + 2 * 3
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["infrastructure_failures"], result["estimates"]["pass@1"]["value"]) == (0, 0.5)


@needs_client
@pytest.mark.parametrize("fault", ["hang", "500", "half"])
def test_a_dead_endpoint_fails_the_evaluation_in_time(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer([fault]) as server:
        assert main(arguments(server, *IMPATIENT, "eval.samples=8")) == 1
        assert len(server.requests) < 10
    assert "failed: 32 of 32 rollouts are infrastructure failures" in capsys.readouterr().err


@needs_client
def test_it_ends_above_the_configured_rate_of_lost_requests(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("policy.remote.max_failure_rate=0.5", "policy.remote.failure_window=4", "policy.remote.concurrency=1")
    with FaultyServer(["400"]) as server:
        assert main(arguments(server, *more)) == 1
        assert len(server.requests) == 4
    assert "failed: teacher at http" in capsys.readouterr().err


@needs_client
def test_a_conversation_beyond_the_context_is_truncated(tmp_path: Path) -> None:
    with FaultyServer(["too_long"]) as server:
        assert main(arguments(server, "eval.tasks=1", "eval.samples=1")) == 0
    [row] = lines(tmp_path / "out" / "rollouts-0of1.jsonl")
    assert (row["status"], row["reward"]) == ("truncated", 0.0)
    assert row["error"] == "the conversation is longer than the model's context"


@needs_client
def test_shards_are_one_evaluation(tmp_path: Path) -> None:
    with FaultyServer(answer=lambda body: answer(body, native=True)) as server:
        assert main(arguments(server, "shard=0/2")) == 0
        assert json.loads((tmp_path / "out" / "result.json").read_text())["rollouts"] == 4
        assert main(arguments(server, "shard=1/2")) == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rollouts"] == 8
    assert {path.name for path in (tmp_path / "out").glob("rollouts-*")} == {
        "rollouts-0of2.jsonl",
        "rollouts-1of2.jsonl",
    }


@needs_client
def test_no_file_holds_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", "marker-secret")
    cached = f"policy.remote.cache={tmp_path / 'kept'}"
    with FaultyServer(answer=lambda body: completion("marker-secret")) as server:
        assert main(arguments(server, "policy.remote.api_key=POLICY_KEY", "eval.tasks=1", cached)) == 0
        assert server.headers[0]["authorization"] == "Bearer marker-secret"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.parent.name == "kept" for path in files)
    assert not [path for path in files if "marker-secret" in path.read_text()]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["policy.remote.api_key=NO_SUCH_KEY_HERE"], "policy.remote.api_key='NO_SUCH_KEY_HERE': the environment"),
        (["policy.remote.base_url=http://me:marker@host/v1"], "policy.remote.base_url: looks like a secret"),
        (["policy.remote.base_url=ftp://host"], "policy.remote.base_url='ftp://host': must begin with http"),
        (["policy.remote.model=''"], "policy.remote.model='': must be a text that is not blank"),
        (["+policy.remote.max_cost=1"], "policy.remote.max_cost: unknown key; policy.remote has"),
        (["+policy.remote.extra.seed=1"], "policy.remote.extra=['seed']: must have none of ['seed']"),
        (["shard=2/2"], "shard='2/2': must be NUMBER/COUNT"),
        (["checkpoint=nowhere.pt"], "checkpoint='nowhere.pt': must be a file"),
    ],
)
def test_bad_config_is_exit_code_2(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy=remote", *WORLD, "tasks_per_iteration=4", *more]) == 2
    error = capsys.readouterr().err
    assert f"bad config: {message}" in error
    assert "marker" not in error


def test_a_remote_policy_cannot_be_trained(composed: Callable[..., DictConfig]) -> None:
    from rti_exp.experiment.checks import check_parts

    with pytest.raises(SettingsError, match="policy=remote: a remote model can be evaluated"):
        check_parts(check(composed("policy=remote")))


def test_a_local_evaluation_resumes(policy_folder: Path, tmp_path: Path) -> None:
    command = [f"policy.path={policy_folder}", *WORLD, "tasks_per_iteration=4", "eval.tasks=2", "out=out"]
    command.append("eval.samples=2")
    assert main(command) == 0
    rollouts = tmp_path / "out" / "rollouts-0of1.jsonl"
    whole = lines(rollouts)
    assert [(row["task_id"], row["sample"]) for row in whole] == [
        (task, sample) for task in ("box_4", "box_5") for sample in (0, 1)
    ]
    rollouts.write_text("".join(json.dumps(row) + "\n" for row in whole[:1]) + '{"task_id": "bo')
    assert main(command) == 0
    assert lines(rollouts) == whole
    assert main([*command, "seed=1"]) == 2  # another evaluation does not go into the same folder


def test_missing_samples_and_task_rows() -> None:
    first, second = (Task(id=name, family="f", split="heldout") for name in "ab")
    ok, lost = {"status": "ok", "reward": 1.0}, {"status": "infrastructure_failure", "reward": None}
    rows = {("a", 0): ok, ("a", 1): ok, ("b", 0): ok, ("b", 1): lost}
    assert missing_samples([first, second], 2, rows) == {"b": [1]}
    assert missing_samples([first, second], 3, rows) == {"a": [2], "b": [1, 2]}
    assert task_rows([first, second], 2, rows, 1.0)[1] == {
        "task_id": "b", "family": "f", "samples": 1, "successes": 1, "reward_mean": 1.0, "infrastructure_failures": 1,
    }  # fmt: skip


def test_estimates_by_hand() -> None:
    tasks = [
        {"task_id": "a", "samples": 4, "successes": 2},
        {"task_id": "b", "samples": 4, "successes": 4},
        {"task_id": "c", "samples": 1, "successes": 0},
    ]
    rates = estimates(tasks, [1, 2])
    assert rates["pass@1"]["value"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert rates["pass@2"]["value"] == pytest.approx((1 - 1 / 6 + 1) / 2)  # C(2,2)/C(4,2) = 1/6
    assert rates["pass^2"]["value"] == pytest.approx((1 / 6 + 1) / 2)
    assert (rates["pass@1"]["tasks"], rates["pass^2"]["tasks"]) == (3, 2)
    low, high = rates["pass^2"]["low"], rates["pass^2"]["high"]
    assert (low, high) == (pytest.approx(1 / 6), pytest.approx(1.0))
    assert estimates(tasks, [5])["pass@5"] == {"value": None, "low": None, "high": None, "tasks": 0}


def test_one_process_writes_a_shard(tmp_path: Path) -> None:
    first = EvaluationFolder(tmp_path, {"seed": 0})
    second = EvaluationFolder(tmp_path, {"seed": 0})
    with first.writing(), pytest.raises(SettingsError, match="another process is evaluating there"), second.writing():
        pass
    with pytest.raises(SettingsError, match="holds another evaluation; it differs in seed"):
        EvaluationFolder(tmp_path, {"seed": 1})


def test_a_note_says_that_greedy_samples_are_identical(composed: Callable[..., DictConfig]) -> None:
    def printed(*overrides: str) -> list[str]:
        return notes(check(composed(*overrides)))

    assert [note.partition(":")[0] for note in printed("eval.temperature=0")] == ["eval.temperature=0"]
    assert printed("eval.temperature=0", "eval.samples=1") == printed() == []
    assert printed("policy=remote", "eval.temperature=0") == []


@pytest.mark.parametrize("name", sorted(path.stem for path in assets_root().glob("conf/benchmark/*.yaml")))
def test_no_benchmark_repeats_a_greedy_sample(name: str) -> None:
    evaluated = yaml.safe_load((assets_root() / "conf" / "benchmark" / f"{name}.yaml").read_text("utf-8"))["eval"]
    assert evaluated["temperature"] > 0 or evaluated["samples"] == 1


def test_a_local_policy_is_on_the_trainers_device(
    composed: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of(check(composed()).trainer.accelerator) == torch.device("cpu")
    assert device_of(check(composed("trainer=gpu")).trainer.accelerator) == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(check(composed("trainer=gpu")).trainer.accelerator) == torch.device("mps")


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16)],
)
def test_rollouts_have_the_trainers_precision(
    composed: Callable[..., DictConfig], precision: str, dtype: torch.dtype
) -> None:
    config, model = check(composed(f"trainer.precision={precision}")), torch.nn.Linear(2, 2)
    x = torch.ones(1, 2, dtype=torch.bfloat16 if precision == "bf16-true" else torch.float32)
    with precision_context(config.trainer.precision, model, torch.device("cpu")):
        assert model(x).dtype is dtype
    assert not torch.is_autocast_enabled("cpu")


def test_a_missing_gpu_is_refused_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert main(["trainer=gpu", "out=out"]) == 2
    assert "bad config: trainer.accelerator='gpu': torch" in capsys.readouterr().err
    assert not Path("out").exists()
