"""Jobs of several ranks: the reason of the rank that broke is what a user sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rti_exp.runs import load_runs
from rti_exp.sweep import ranks
from rti_exp.sweep.ranks import OtherRanks, RankFailed, lost_a_peer, report, reported, reporting
from tests.support.jobs import FAULTY, WITHOUT_TURNS, call

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:24519"


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "STAY_SECONDS", 0.0)
    monkeypatch.setattr(ranks, "PATIENCE_SECONDS", 0.5)


def test_a_lost_peer_is_told_from_an_error_of_its_own() -> None:
    import torch

    assert lost_a_peer(RuntimeError(GLOO))
    assert lost_a_peer(torch.distributed.DistBackendError("timed out"))
    assert not lost_a_peer(RuntimeError("CUDA out of memory"))
    assert not lost_a_peer(ValueError("the gloo"))


def test_the_error_of_a_rank_is_read_by_rank_0_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("SOME_TOKEN", "marker-secret")
    with pytest.raises(ValueError, match="marker"), reporting(tmp_path):
        raise ValueError("401 for marker-secret")
    record = reported(tmp_path)
    assert record is not None
    assert (record["type"], record["message"]) == ("ValueError", "rank 3: 401 for [secret]")
    assert "Traceback" in record["traceback"]
    assert OtherRanks(tmp_path).failure() is None  # a new attempt begins without it
    assert reported(tmp_path) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_a_rank_that_is_asked_to_end_has_no_reason(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), reporting(tmp_path):
        raise error
    assert reported(tmp_path) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"type": "X"}', "[" * 100_000])
def test_a_damaged_reason_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank-1.json").write_text(text)
    assert reported(tmp_path) is None


def failing(others: OtherRanks, reason: Exception, error: Exception) -> None:
    """Rank 1 breaks for a reason, and then rank 0 with an error."""
    with others.watched(lambda record: None):
        report(others.directory, "1", reason)
        raise error


def test_rank_0_fails_with_the_reason_of_the_rank_that_it_lost(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"^ValueError: rank 1: the cause$"):
        failing(OtherRanks(tmp_path), ValueError("the cause"), RuntimeError(GLOO))


def test_rank_0_fails_with_its_own_reason_first(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="my own"):
        failing(OtherRanks(tmp_path), RuntimeError("also"), ValueError("my own"))


def test_a_lost_rank_without_a_reason_leaves_the_error_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Connection closed by peer"), OtherRanks(tmp_path).watched(lambda _: None):
        raise RuntimeError(GLOO)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(7)", "Exited: rank 1 ended with exit code 7"),
        (
            "import os; os.kill(os.getpid(), 9)",
            "Killed: rank 1 was ended by SIGKILL (kill -9, or the machine ran out of memory)",
        ),
        ("import os; os.kill(os.getpid(), 15)", None),
        ("", None),
    ],
)
def test_a_rank_that_ends_without_a_word_is_told(code: str, told: str | None, tmp_path: Path) -> None:
    others = OtherRanks(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", code])
    others.trainer = SimpleNamespace(strategy=SimpleNamespace(launcher=SimpleNamespace(procs=[process])))
    process.wait()
    record = others.failure()
    assert (None if record is None else f"{record['type']}: {record['message']}") == told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "at", "told"),
    [
        ("raise on rank 1", "step", "Broken: rank 1: the town of rank 1 is closed"),
        ("raise on rank 1", "make", "rank 1: "),
        ("end on rank 1", "step", "rank 1 ended with exit code 7"),
        ("kill on rank 1", "step", "Killed: rank 1 was ended by SIGKILL (kill -9, or the machine ran out of memory)"),
    ],
)
@pytest.mark.parametrize("sweep", [True, False])
def test_the_status_and_the_sweep_have_the_reason_of_the_rank_that_broke(
    fault: str, at: str, told: str, sweep: bool, policy_folder: Path, tmp_path: Path
) -> None:
    faulty = [text for text in FAULTY if not text.startswith("+env.")]
    arguments = [*WITHOUT_TURNS, *faulty, f"+env.fault='{fault}'", f"+env.at={at}", f"policy.path={policy_folder}"]
    arguments += ["trainer=ddp_cpu", "trainer.devices=2", "eval.tasks=0", "study=ranks"]
    done = call(*(["-m", "seed=0,0"] if sweep else []), *arguments, cwd=tmp_path)
    [run] = load_runs(tmp_path / "runs" / "ranks") or [pytest.fail(done.stdout + done.stderr)]
    assert run.status is not None
    assert run.status["state"] == "failed", done.stdout + done.stderr
    assert run.status["ended"] is not None
    assert told in f"{run.status['error']['type']}: {run.status['error']['message']}"
    assert told in done.stdout + done.stderr
    assert done.returncode == 1
