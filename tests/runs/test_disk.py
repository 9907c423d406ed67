"""The disk is waited for beside the work: what is slow there stops nobody, what fails there is told, in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.runs import Run, read_status
from rti_exp.runs.disk import Disk
from rti_exp.runs.json_lines import LineFile
from rti_exp.sweep import job
from rti_exp.training.checkpoints import Checkpointer, latest_valid_checkpoint
from rti_exp.training.learner import RTIModule
from tests.commands.test_train import SMALL, assert_same_run, rows, run_here
from tests.guarantees.test_kills import in_a_fork

Composed = Callable[..., DictConfig]
FULL = OSError(28, "No space left on device")


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.close()


def name_of(descriptor: int) -> str:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name


def failing_fsync(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], bool]) -> None:
    """fsync of a file whose name `fails` says so for finds no room; each is called with the name once."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if fails(name_of(descriptor)):
            raise OSError(*FULL.args)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_jobs_are_done_in_their_order_beside_the_caller(disk: Disk) -> None:
    done: list[int] = []
    gate = threading.Event()
    first = disk.submit(lambda: gate.wait(60) and done.append(1), done.clear)
    second = disk.submit(lambda: done.append(2), done.clear)
    assert done == []
    gate.set()
    disk.wait(second)
    assert done == [1, 2]
    disk.wait(first)  # a second time, and out of order: it is done


def test_the_first_job_that_fails_is_the_last(disk: Disk) -> None:
    told: list[str] = []

    def fails() -> None:
        raise FULL

    disk.submit(lambda: told.append("done 1"), lambda: told.append("undone 1"))
    disk.submit(fails, lambda: told.append("undone 2"))
    third = disk.submit(lambda: told.append("done 3"), lambda: told.append("undone 3"))
    disk.drain()
    assert told == ["done 1", "undone 2", "undone 3"]
    for wait in (lambda: disk.wait(third), lambda: disk.wait(None), disk.flush):
        with pytest.raises(OSError, match="No space left") as caught:
            wait()
        assert caught.value is FULL


def test_a_signal_ends_the_waiting_and_nothing_else(disk: Disk) -> None:
    class Rung(Exception): ...

    def ring(number: int, frame: object) -> None:
        raise Rung

    gate = threading.Event()
    slow = disk.submit(lambda: gate.wait(60), lambda: None)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Rung):
            disk.wait(slow)
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.set()
    disk.wait(slow)
    disk.flush()


def test_a_slow_disk_stops_the_second_append_only(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda descriptor: gate.wait(60))
    file = LineFile(tmp_path / "rows.jsonl", disk=disk)
    file.append([{"iteration": 1}])
    assert file.path.read_text() == '{"iteration": 1}\n'
    released: list[float] = []
    timer = threading.Timer(0.2, lambda: (released.append(time.perf_counter()), gate.set()))
    timer.start()
    file.append([{"iteration": 2}])
    assert released
    assert file.path.read_text() == '{"iteration": 1}\n{"iteration": 2}\n'
    file.close()


def test_rows_that_the_disk_does_not_take_are_taken_back(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (LineFile(tmp_path / name, disk=disk) for name in ("first.jsonl", "second.jsonl"))
    first.append([{"iteration": 1}])
    second.append([{"iteration": 1}])
    disk.flush()
    failing_fsync(monkeypatch, lambda name: name == "first.jsonl")
    first.append([{"iteration": 2}, {"iteration": 2}])
    second.append([{"iteration": 2}])  # whole, but what came before it is lost
    disk.drain()
    for file in (first, second):
        assert file.path.read_text() == '{"iteration": 1}\n'
        with pytest.raises(OSError, match="No space left"):
            file.append([{"iteration": 3}])
        assert file.path.read_text() == '{"iteration": 1}\n'


@pytest.mark.parametrize(
    ("weights", "left"), [(torch.ones(9), []), (torch.ones(9).to_sparse(), ["iteration-000001.tmp"])]
)
def test_a_checkpoint_has_no_name_before_its_rows_are_on_the_disk(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: torch.Tensor, left: list[str]
) -> None:
    """One that is copied is not written before; one that cannot be copied is, under another name."""
    folder = tmp_path / "checkpoints"
    gate = threading.Event()
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: gate.wait(60) if name_of(descriptor) == "rows.jsonl" else real(descriptor)
    )
    LineFile(tmp_path / "rows.jsonl", disk=disk).append([{"iteration": 1}])
    taken = Checkpointer(folder, "key").take({"iteration": 1, "weights": weights}, previous=0)
    disk.submit(taken.publish, taken.discard)
    assert [path.name for path in folder.iterdir()] == left
    assert latest_valid_checkpoint(folder, "key") is None
    gate.set()
    disk.flush()
    assert [path.name for path in folder.iterdir()] == ["iteration-000001.pt"]


def test_a_run_is_never_done_on_a_disk_that_did_not_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Run.open(tmp_path, key="0123456789ab", study="single", config={})) as run:
        run.append_metrics({"kind": "train", "iteration": 1})
        run.disk.flush()
        with monkeypatch.context() as patched:
            failing_fsync(patched, lambda name: name == "metrics.jsonl")
            run.append_metrics({"kind": "train", "iteration": 2})
            with pytest.raises(OSError, match="No space left") as caught:
                run.finish("done")
        run.finish("failed", caught.value)
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["iterations_done"], status["error"]["message"]) == ("failed", 1, str(FULL))
    assert not list(tmp_path.glob(".*.tmp"))


def test_the_next_iteration_begins_while_the_disk_is_waited_for(
    composed: Composed, policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iteration 2 begins before the rows of iteration 1 are on the disk: they wait for it."""
    small = (*SMALL, f"policy.path={policy_folder}", "max_iterations=2", f"runs_root={tmp_path}")
    small = (*small, "eval.tasks=0", "probe=none")  # no other rows
    begun = threading.Event()
    waited: list[bool] = []
    real_fsync, real_step = os.fsync, RTIModule.training_step

    def fsync(descriptor: int) -> None:
        if name_of(descriptor) == "metrics.jsonl" and not waited:
            waited.append(begun.wait(60))
        real_fsync(descriptor)

    def step(self: RTIModule, tasks: Any) -> None:
        if self.iteration == 1:
            begun.set()
        real_step(self, tasks)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(RTIModule, "training_step", step)
    code, directory = run_here(composed(*small))
    assert (code, waited) == (0, [True])
    assert [row["iteration"] for row in rows(directory)] == [1, 2]


@pytest.fixture(scope="module")
def whole(composed: Composed, policy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has happened to."""
    root = tmp_path_factory.mktemp("whole")
    code, directory = run_here(composed(*SMALL, f"policy.path={policy_folder}", f"runs_root={root}"))
    assert code == 0
    return directory


@pytest.mark.parametrize("name", ["metrics.jsonl", "interventions.jsonl", "iteration-000002.tmp", ".status.json"])
def test_a_disk_that_fails_beside_the_run_ends_it_and_it_can_go_on(
    composed: Composed, policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path, name: str
) -> None:
    """From iteration 2 on fsync of one file fails, once: the same error, and nothing that was not taken counts."""
    config = composed(*SMALL, f"policy.path={policy_folder}", f"runs_root={tmp_path}")
    directory = check(config).directory("single")
    first = directory / "checkpoints" / "iteration-000001.pt"
    told: list[str] = []

    def fails(synced: str) -> bool:
        if told or not synced.startswith(name) or not first.exists():
            return False
        told.append(synced)
        return True

    with monkeypatch.context() as patched:
        failing_fsync(patched, fails)
        assert job.run_job(config) == 1
    status = read_status(directory)
    assert status is not None
    assert told
    assert (status["state"], status["error"]["type"]) == ("failed", "OSError")
    assert status["error"]["message"] == str(FULL)
    assert not list(directory.rglob("*.tmp"))
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["iteration-000001.pt"]
    assert job.run_job(config) == 0
    assert_same_run(directory, whole)


@pytest.mark.parametrize("moment", ["fsync", "replace", "unlink"])
def test_a_run_that_is_killed_while_a_checkpoint_gets_its_name(
    composed: Composed, policy_folder: Path, tmp_path: Path, whole: Path, moment: str
) -> None:
    """kill -9 between its writing and its name, and right after; the resumed run is the unbroken one."""
    config = composed(*SMALL, f"policy.path={policy_folder}", f"runs_root={tmp_path}")
    directory = check(config).directory("single")

    def killed() -> int:
        real = getattr(os, moment)

        def operation(*arguments: Any, **others: Any) -> Any:
            name = name_of(arguments[0]) if moment == "fsync" else Path(arguments[0]).name
            if name in ("iteration-000003.tmp", "iteration-000001.pt"):  # the first goes when the third has come
                time.sleep(0.2)  # meanwhile the next iteration goes on
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **others)

        setattr(os, moment, operation)
        return job.run_job(config)

    assert in_a_fork(killed) == -signal.SIGKILL
    left = sorted(path.name for path in (directory / "checkpoints").iterdir())
    if moment == "unlink":
        assert left == [f"iteration-00000{number}.pt" for number in (1, 2, 3)]
    else:
        assert left == ["iteration-000001.pt", "iteration-000002.pt", "iteration-000003.tmp"]
    assert in_a_fork(lambda: job.run_job(config)) == 0
    assert_same_run(directory, whole)
    assert not list(directory.rglob("*.tmp"))
