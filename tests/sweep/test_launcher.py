"""The launcher with a stand-in for the job: what is planned, run, skipped, and told."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from omegaconf import DictConfig
from rich.console import Console

from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import TopSettings
from rti_exp.config.settings import SettingsError
from rti_exp.runs import Run, read_status
from rti_exp.sweep import jobs as sweep_jobs
from rti_exp.sweep import runner as sweep
from rti_exp.sweep.configs import SweepConfigs
from rti_exp.sweep.display import (
    Display,
    duration,
    estimated_seconds,
    expected_iterations,
    measured_seconds_per_iteration,
    next_commands,
)
from rti_exp.sweep.jobs import Sweep
from rti_exp.sweep.overrides import key_of, study_name, swept_in, swept_keys
from rti_exp.sweep.runner import SweepRunner

Composed = Callable[..., DictConfig]

STAND_IN = """
import os, signal, sys, time
from pathlib import Path
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rti_exp.config.check import check
from rti_exp.config.paths import assets_root
from rti_exp.runs import Run

overrides = [text for text in sys.argv[1:] if "=" in text and not text.startswith("hydra.")]
OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
    config = check(compose("train", overrides=overrides))
study = config.top.study
run = Run.open(config.directory(study), key=config.key, study=study, config=config.plain, overrides=overrides,
               seed=config.run.seed, fresh=config.top.fresh)
print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
what = config.prompts.validator.text
for iteration in range(run.iterations_done + 1, config.run.max_iterations + 1):
    if what == "raise" and iteration == 2:
        run.finish("failed", RuntimeError("it broke"))
        sys.exit(1)
    if what == "exit" and iteration == 2:
        os._exit(7)
    if what == "kill" and iteration == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    run.append_metrics({"kind": "train", "iteration": iteration, "time/iteration": 0.1})
run.finish("done")
"""


@pytest.fixture
def plan(
    composed: Composed, policy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[Sequence[str]]], Sweep]:
    """Plans a sweep of 3 iterations a job whose children run `STAND_IN`."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sweep, "CHILD", (sys.executable, str(script)))
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("PYTHONPATH", str(Path(sweep.__file__).parents[2]))
    fixed = (f"policy.path={policy_folder}", f"runs_root={tmp_path / 'runs'}", "max_iterations=3")

    def make(jobs: Sequence[Sequence[str]]) -> Sweep:
        full = [(*overrides, *fixed) for overrides in jobs]
        return Sweep.plan(full, SweepConfigs(lambda overrides: composed(*overrides)), n_jobs=2)

    return make


def states(planned: Sweep) -> list[str | None]:
    return [(read_status(job.directory) or {}).get("state") for job in planned.jobs]


def test_names() -> None:
    jobs = [["gate.delta=0", "seed=0", "size=quick"], ["gate.delta=5", "seed=1", "size=quick"]]
    assert swept_keys(jobs) == ["gate.delta", "seed"]
    assert swept_in(["-m", "gate.delta=0,5", "size=quick", "+x=[1,2]", "seed=range(3)", "y=choice(a,b)", "a="]) == [
        "gate.delta",
        "seed",
        "y",
    ]
    assert study_name(["gate.delta", "seed"]) == "gate.delta+seed"
    assert study_name(["hydra.launcher.n_jobs"]) == "sweep"
    assert study_name(["policy/../../x"]) == "policy-..-..-x"
    assert key_of("+a@b.c=5") == "a"
    assert len(study_name(["k" * 300])) == 80


def test_equal_configs_are_one_job(plan: Callable[..., Sweep]) -> None:
    planned = plan([[f"gate.delta={text}"] for text in ("inf", "Inf", "5", "5.0", ".inf", "0")])
    assert [job.config.plain["gate"]["delta"] for job in planned.jobs] == [float("inf"), 5.0, 0.0]
    assert planned.study == "gate.delta"
    assert planned.study_dir.name == "gate.delta"
    assert all("study=gate.delta" in job.overrides for job in planned.jobs)


def test_a_quick_look_has_a_study_of_its_own(plan: Callable[..., Sweep]) -> None:
    quick = plan([["gate.delta=0", "size=quick"], ["gate.delta=5", "size=quick"]])
    assert quick.study == quick.study_dir.name == "gate.delta-quick"
    assert "study=gate.delta-quick" in quick.jobs[0].overrides
    assert plan([["gate.delta=0", "size=quick", "study=mine"]]).study == "mine"
    assert {job.directory.parent.name for job in plan([["size=quick"], ["size=full", "seed=1"]]).jobs} == {"size"}
    assert default_settings(TopSettings, size="a/b").study_or("single") == "single-a-b"


def test_a_bad_job_refuses_the_sweep(plan: Callable[..., Sweep]) -> None:
    with pytest.raises(SettingsError, match=r"gate\.delta=nan: must be a number >= 0, or inf \(job: gate\.delta=nan"):
        plan([["gate.delta=1"], ["gate.delta=nan"]])


def test_new_jobs_run_done_ones_are_skipped_partial_ones_go_on(plan: Callable[..., Sweep]) -> None:
    first = plan([["gate.delta=0"], ["gate.delta=5"]])
    assert SweepRunner(first).run() == 0
    assert states(first) == ["done", "done"]
    partial = first.jobs[1]
    run = Run(partial.directory, key=partial.config.key, study="gate.delta")
    run.truncate_after(1)
    run.finish("failed", RuntimeError("earlier"))
    run.close()
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in first.jobs[0].directory.glob("*.*")}
    second = plan([["gate.delta=0"], ["gate.delta=5"], ["gate.delta=20"]])
    assert [(job.state, job.iterations_done) for job in second.jobs] == [("done", 3), ("continue", 1), ("new", 0)]
    assert SweepRunner(second).run() == 0
    assert states(second) == ["done", "done", "done"]
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert plan([["gate.delta=0", "fresh=true"]]).jobs[0].state == "new"


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("raise", "RuntimeError: it broke"),
        ("exit", "Exited: the process ended with exit code 7"),
        ("kill", "Killed: the process was ended by SIGKILL (kill -9, or the machine ran out of memory)"),
    ],
)
def test_a_job_that_dies_fails_alone(plan: Callable[..., Sweep], what: str, error: str) -> None:
    planned = plan([[f"prompts.validator.text={what}"], ["prompts.validator.text=fine"]])
    assert SweepRunner(planned).run() == 1
    assert states(planned) == ["failed", "done"]
    status = read_status(planned.jobs[0].directory)
    assert status is not None
    assert f"{status['error']['type']}: {status['error']['message']}" == error
    assert status["iterations_done"] == 1
    assert status["ended"] is not None
    assert (planned.jobs[0].error or "").startswith(error)


def test_children_get_their_share_of_the_cores(plan: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    planned = plan([["seed=1"]])
    assert SweepRunner(planned).run() == 0
    assert "threads 4" in (planned.jobs[0].directory / "job.log").read_text()


def test_the_plan_is_announced(plan: Callable[..., Sweep]) -> None:
    planned = plan([[f"gate.delta={delta}", f"seed={seed}"] for delta in ("0", "inf") for seed in (0, 1)])
    console = Console(file=StringIO(), width=200)
    Display(planned, console).announce()
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "gate.delta+seed: 4 jobs, 2 at once" in text
    assert "4 to run, about 12 s (a guess)" in text
    lines = [line for line in text.splitlines() if "2 new" in line]
    assert len(lines) == 2
    assert "0, 1" in lines[0]
    assert "inf" in lines[1]


def test_edited_seconds_of_a_done_run_do_not_count(plan: Callable[..., Sweep]) -> None:
    planned = plan([["gate.delta=0"]])
    assert SweepRunner(planned).run() == 0
    assert measured_seconds_per_iteration(planned.study_dir) is not None
    path = planned.jobs[0].directory / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "compute": {"seconds": "many"}}))
    assert measured_seconds_per_iteration(planned.study_dir) is None


def test_an_error_cannot_command_the_terminal(plan: Callable[..., Sweep]) -> None:
    planned = plan([["gate.delta=0"]])
    planned.jobs[0].state, planned.jobs[0].error = "failed", "ValueError: \x1b[2J[red]gone\nsecond line"
    planned.study_dir.mkdir(parents=True)
    console = Console(file=StringIO(), width=200)
    display = Display(planned, console)
    display.ended(planned.jobs[0])
    display.summary()
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert text.count("ValueError: [2J[red]gone second line") == 2
    assert "\x1b" not in text


def test_an_estimate_fills_the_places_in_order() -> None:
    assert estimated_seconds([10, 10, 10], per_iteration=2.0, n_jobs=2) == 40.0
    assert estimated_seconds([10], per_iteration=2.0, n_jobs=2) == 20.0
    assert [duration(seconds) for seconds in (59.4, 61, 3720)] == ["59 s", "1 min 01 s", "1 h 02 min"]


def test_a_token_budget_is_expected_to_end_a_job_with_the_others(plan: Callable[..., Sweep]) -> None:
    jobs = plan([["gate.delta=0"], ["gate.delta=5", "budget.tokens=1e5"]]).jobs
    jobs[1].config = replace(jobs[1].config, run=replace(jobs[1].config.run, max_iterations=1000))
    assert [expected_iterations(job, jobs) for job in jobs] == [3, 3]
    assert expected_iterations(jobs[1], jobs[1:]) == 1000


def test_many_configs_are_told(
    plan: Callable[..., Sweep], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_jobs, "MANY", 2)
    plan([["seed=1"], ["seed=2"]])
    assert capsys.readouterr().out == ""
    plan([["seed=1"], ["seed=2"], ["seed=3"]])
    assert capsys.readouterr().out == "checking 3 configs ...\n"


def test_what_to_type_next_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where nobody has run the study yet
    assert next_commands(Path("runs") / "gate.delta") == ["for the report:", "  python -m rti_exp.report gate.delta"]
    study = tmp_path / "my runs" / "a b"
    (study / "key" / "wandb" / "offline-run-1").mkdir(parents=True)
    lines = next_commands(study)
    assert lines[1] == f"  python -m rti_exp.report 'a b' --runs-root '{study.parent}'"
    assert lines[3] == f"  python -m wandb sync '{study}'/*/wandb/offline-run-*"


def test_what_is_done_in_another_study_is_taken_from_there(
    plan: Callable[[Sequence[Sequence[str]]], Sweep], capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan([["study=first", "gate.delta=5"], ["study=first", "gate.delta=0"]])
    assert SweepRunner(first).run() == 0
    source = first.jobs[0].directory
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.iterdir() if path.is_file()}
    capsys.readouterr()
    second = plan([["study=second", "gate.delta=5"], ["study=second", "gate.delta=20"]])
    assert SweepRunner(second).run() == 0
    assert "1 done already in first, taken from there (fresh=true runs them anew)" in capsys.readouterr().out
    taken, run = second.jobs
    assert not (taken.directory / "job.log").exists() or taken.process is None
    assert run.process is not None
    status, own = read_status(source), read_status(taken.directory)
    assert status is not None
    assert own is not None
    assert own["overrides"][0] == "study=second"
    assert {**status, "study": "second", "overrides": own["overrides"], "taken_from": "first"} == own
    assert (taken.directory / "metrics.jsonl").read_bytes() == (source / "metrics.jsonl").read_bytes()
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source.iterdir() if path.is_file()} == before
    again = plan([["study=second", "gate.delta=5", "fresh=true"]])
    assert SweepRunner(again).run() == 0
    assert again.jobs[0].process is not None
    assert (source / "metrics.jsonl").read_bytes() == before[source / "metrics.jsonl"][1]


def test_what_is_half_taken_over_is_gone_on_with_and_harms_nothing(
    plan: Callable[[Sequence[Sequence[str]]], Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan([["study=first", "gate.delta=5"]])
    assert SweepRunner(first).run() == 0
    source = first.jobs[0].directory
    before = (source / "metrics.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["rti_exp.runs.adopt"], "write_status", full)
    second = plan([["study=second", "gate.delta=5"]])
    assert SweepRunner(second).run() == 0
    taken = second.jobs[0]
    assert taken.process is not None
    with open(taken.directory / "metrics.jsonl", "ab") as file:
        file.write(b"appended")
    assert (source / "metrics.jsonl").read_bytes() == before


def test_a_failed_run_of_another_study_is_run_anew(plan: Callable[[Sequence[Sequence[str]]], Sweep]) -> None:
    assert SweepRunner(plan([["study=first", "prompts.validator.text=raise"]])).run() == 1
    second = plan([["study=second", "prompts.validator.text=raise"]])
    assert SweepRunner(second).run() == 1
    assert second.jobs[0].process is not None


def test_a_run_of_weights_that_were_made_anew_since_is_not_taken_over(
    plan: Callable[[Sequence[Sequence[str]]], Sweep], policy_folder: Path
) -> None:
    assert SweepRunner(plan([["study=first", "gate.delta=5"]])).run() == 0
    later = time.time() + 60
    os.utime(policy_folder / "config.json", (later, later))
    second = plan([["study=second", "gate.delta=5"]])
    try:
        assert SweepRunner(second).run() == 0
    finally:
        os.utime(policy_folder / "config.json", (0, 0))
    assert second.jobs[0].process is not None
