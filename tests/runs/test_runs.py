from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rti_exp.runs import (
    Run,
    RunBroken,
    RunDone,
    RunLocked,
    RunUnwritable,
    is_done,
    load_run,
    load_runs,
    read_status,
    run_key,
    settle,
)
from rti_exp.runs.json_lines import LineFile, read_lines

CONFIG = {"seed": 0, "gate": {"delta": math.inf}}


def opened(folder: Path, **changes: Any) -> Run:
    arguments: dict[str, Any] = {"key": "0123456789ab", "study": "single", "config": CONFIG, "seed": 0}
    return Run.open(folder, **{**arguments, **changes})


def train_row(iteration: int, generated: int = 10, seconds: float = 0.5) -> dict[str, Any]:
    return {
        "kind": "train",
        "iteration": iteration,
        "tokens/generated": generated,
        "tokens/role_generated": 1,
        "tokens/scored": 2,
        "tokens/role_scored": None,
        "tokens/trained": 4,
        "time/iteration": seconds,
    }


def test_run_key_ignores_the_order_of_keys_only() -> None:
    first = run_key({"a": 1.0, "b": {"c": math.inf, "d": 2}})
    assert first == run_key({"b": {"d": 2, "c": math.inf}, "a": 1.0})
    assert len(first) == 12
    assert first != run_key({"a": 2.0, "b": {"c": math.inf, "d": 2}})


def test_status_has_all_fields_of_the_contract(tmp_path: Path) -> None:
    run = opened(tmp_path / "run", overrides=["gate.delta=inf"])
    run.append_metrics(train_row(1))
    run.append_metrics({"kind": "eval", "iteration": 1, "pass@1": 0.5, "tasks": []})
    run.finish("done")
    run.close()
    status = read_status(tmp_path / "run")
    assert status is not None
    assert {name: status[name] for name in ("state", "run_key", "study", "overrides", "seed", "iterations_done")} == {
        "state": "done",
        "run_key": "0123456789ab",
        "study": "single",
        "overrides": ["gate.delta=inf"],
        "seed": 0,
        "iterations_done": 1,
    }
    assert status["error"] is None
    assert status["started"] <= status["ended"]
    assert status["compute"] == {"generated_tokens": 11, "scored_tokens": 2, "trained_tokens": 4, "seconds": 0.5}
    record = load_run(tmp_path / "run")
    assert record.config["gate"]["delta"] == math.inf
    assert [row["kind"] for row in record.metrics()] == ["train", "eval"]


def test_an_error_is_written_with_its_traceback(tmp_path: Path) -> None:
    run = opened(tmp_path)
    try:
        raise ValueError("it broke")
    except ValueError as error:
        run.finish("failed", error)
    run.close()
    status = read_status(tmp_path)
    assert status is not None
    assert (status["error"]["type"], status["error"]["message"]) == ("ValueError", "it broke")
    assert 'raise ValueError("it broke")' in status["error"]["traceback"]


def test_the_size_cap_is_kept_and_told(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    file = LineFile(path, limit_bytes=40)
    file.append([{"iteration": 1}, {"iteration": 2}])
    file.append([{"iteration": 3}])
    file.append([{"iteration": 4}])
    file.close()
    lines = path.read_text().splitlines()
    assert lines == [
        '{"iteration": 1}',
        '{"iteration": 2}',
        '{"capped": true, "iteration": 3, "limit_bytes": 40}',
    ]
    assert [row["iteration"] for row in read_lines(path)] == [1, 2]
    again = LineFile(path, limit_bytes=40)
    again.append([{"iteration": 5}])
    assert path.read_text().splitlines() == lines


def test_the_cap_outlives_a_resume_that_drops_nothing_before_it(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    file = LineFile(path, limit_bytes=40)
    file.append([{"iteration": 1}, {"iteration": 2, "text": "long enough"}])
    lines = path.read_text().splitlines()
    assert lines[1:] == ['{"capped": true, "iteration": 2, "limit_bytes": 40}']
    file.keep(lambda row: row["iteration"] <= 2)
    file.append([{"iteration": 3}])
    assert path.read_text().splitlines() == lines
    file.keep(lambda row: row["iteration"] <= 1)
    file.append([{"iteration": 2}])
    assert [row["iteration"] for row in read_lines(path)] == [1, 2]


BROKEN_LINES = {
    "text": b"nonsense",
    "bytes": b"\xff\xfe",
    "zeros": bytes(50),
    "list": b"[1]",
    "an infinite iteration": b'{"kind": "train", "iteration": 1e400}',
    "a huge iteration": b'{"kind": "train", "iteration": 1' + b"0" * 400 + b"}",
    "no iteration": b'{"kind": "train"}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("line", BROKEN_LINES.values(), ids=BROKEN_LINES)
@pytest.mark.parametrize("name", ["metrics", "interventions", "rollouts"])
def test_broken_records_are_told_and_can_be_started_over(tmp_path: Path, name: str, line: bytes) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(line + b'\n{"kind": "train", "iteration": 2}\n')
    with pytest.raises(RunBroken, match=rf"{name}\.jsonl.*fresh=true"), closing(opened(tmp_path)) as run:
        run.truncate_after(1)
    assert path.read_bytes().startswith(line)
    run = opened(tmp_path, fresh=True)
    assert path.read_bytes() == b""
    run.close()


def test_what_is_half_removed_does_not_look_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path)
    run.finish("done")
    run.close()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, fresh=True)
    assert not is_done(tmp_path)


def test_truncate_after_drops_later_rows_and_counts_again(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.append_metrics({"kind": "eval", "iteration": 0, "tasks": []})
    for iteration in (1, 2, 3):
        run.append_interventions([{"iteration": iteration, "id": f"{iteration}a"}, {"iteration": iteration}])
        run.append_rollouts([{"iteration": iteration}])
        run.append_metrics(train_row(iteration))
    assert run.evaluated(0)
    assert not run.evaluated(3)
    run.truncate_after(2)
    assert [row["iteration"] for row in read_lines(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    assert [row["iteration"] for row in read_lines(tmp_path / "interventions.jsonl")] == [1, 1, 2, 2]
    assert run.status["iterations_done"] == 2
    assert run.status["compute"]["generated_tokens"] == 22
    run.append_metrics(train_row(3))
    assert [row["iteration"] for row in read_lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3]
    run.truncate_after(-1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_reopened_run_keeps_its_start_and_its_counts(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.append_metrics(train_row(1))
    run.update(started="2020-01-01T00:00:00+00:00", wandb_id="0123456789ab")
    run.close()
    run = opened(tmp_path)
    assert run.status["started"] == "2020-01-01T00:00:00+00:00"
    assert run.status["wandb_id"] == "0123456789ab"
    assert run.status["iterations_done"] == 1
    run.close()
    run = opened(tmp_path, fresh=True)
    assert run.status["iterations_done"] == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    run.close()


def test_a_done_run_is_not_opened_but_to_start_over(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.append_metrics(train_row(1))
    run.finish("done")
    run.close()
    before = (tmp_path / "status.json").read_bytes()
    with pytest.raises(RunDone, match="fresh=true starts over"):
        opened(tmp_path)
    assert (tmp_path / "status.json").read_bytes() == before
    run = opened(tmp_path, fresh=True)
    assert (run.status["state"], run.status["iterations_done"]) == ("running", 0)
    run.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"state": "runn',
        "[]",
        '{"state": "flying"}',
        "nonsense",
        "[" * 100_000,
        '{"state": "done", "iterations_done": "x"}',
        '{"state": "done", "iterations_done": 1e400}',
        '{"state": "done", "iterations_done": 1' + "0" * 400 + "}",
        '{"state": "done", "error": ' + "[" * 200 + "]" * 200 + "}",
    ],
)
def test_a_torn_status_is_no_status(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert read_status(tmp_path) is None
    assert not is_done(tmp_path)
    assert load_run(tmp_path).state == "missing"
    run = opened(tmp_path)
    assert run.status["state"] == "running"
    run.close()


@pytest.mark.parametrize("content", [b"{", b"a: \xff", b"a: \0", b"[" * 5000])
def test_load_runs_takes_broken_ones_too(tmp_path: Path, content: bytes) -> None:
    assert load_runs(tmp_path / "nothing") == []
    opened(tmp_path / "b").close()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_bytes(content)
    (tmp_path / "c" / "status.json").mkdir(parents=True)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "results.md").write_text("")
    states = [(run.directory.name, run.state) for run in load_runs(tmp_path)]
    assert states == [("a", "missing"), ("b", "running"), ("c", "missing")]


def test_two_processes_cannot_hold_one_directory(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rti_exp.runs import Run\n"
        "run = Run.open(Path(sys.argv[1]), key='k', study='s', config={})\n"
        "print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunLocked, match=rf"another process \(pid {other.pid}\) is working in this directory"):
            opened(tmp_path)
        settle(tmp_path, state="failed", error=None, identity={})
        status = read_status(tmp_path)
        assert status is not None
        assert status["state"] == "running"
    finally:
        other.kill()
        other.wait()
    settle(tmp_path, state="failed", error={"type": "Killed", "message": "m", "traceback": ""}, identity={})
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["error"]["type"], status["run_key"]) == ("failed", "Killed", "k")
    opened(tmp_path).close()


def test_settle_writes_a_whole_status_where_there_was_none(tmp_path: Path) -> None:
    identity = {"run_key": "k", "study": "s", "overrides": ["seed=1"], "seed": 1}
    settle(tmp_path, state="failed", error={"type": "Killed", "message": "m", "traceback": ""}, identity=identity)
    status = json.loads((tmp_path / "status.json").read_text())
    assert {name: status[name] for name in identity} == identity
    assert (status["state"], status["iterations_done"], status["compute"]["seconds"]) == ("failed", 0, 0)


@pytest.mark.parametrize("place", ["file", "below a file", "proc"])
def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    folder = {"file": tmp_path / "file", "below a file": tmp_path / "file" / "run", "proc": Path("/proc/run")}[place]
    with pytest.raises(RunUnwritable, match="cannot be created or written"):
        opened(folder)


def test_listeners_hear_rows_that_are_on_disk(tmp_path: Path) -> None:
    run = opened(tmp_path)
    heard: list[int] = []
    run.listeners.append(lambda row: heard.append(len(list(read_lines(run.metrics.path)))))
    run.append_metrics(train_row(1))
    run.append_metrics(train_row(2))
    assert heard == [1, 2]


def test_reading_runs_imports_no_torch() -> None:
    code = "import rti_exp.runs, sys; assert not {'torch', 'numpy', 'hydra'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
