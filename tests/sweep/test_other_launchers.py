"""Sweeps through Hydra's other launchers: the same runs, table and exit codes, as far as Hydra allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra.errors import MissingConfigException
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.conversion import explain
from rti_exp.runs import load_runs
from tests.support.jobs import SMALL, call, fingerprint

LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ("hydra.launcher.n_jobs=2",)),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", ("hydra.launcher.timeout_min=5",)),
    "ray": ("hydra_plugins.hydra_ray_launcher", ("+hydra.launcher.ray.init.num_cpus=2",)),
}


@pytest.fixture(params=list(LAUNCHERS))
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    plugin, options = LAUNCHERS[request.param]
    pytest.importorskip(plugin)
    return (f"hydra/launcher={request.param}", *options)


@pytest.mark.parametrize(("name", "extra"), [("joblib", "joblib"), ("submitit_slurm", "slurm"), ("ray", "ray")])
def test_a_launcher_that_is_not_installed_names_the_command(name: str, extra: str) -> None:
    path = f"hydra/launcher/{name}"
    told = explain(MissingConfigException(f"In 'hydra/config': Could not find '{path}'\n\nAvailable: basic", path))
    assert told.startswith(f"hydra/launcher={name} needs an extra: pip install 'rti-exp[{extra}]'\n")


def sweep(launcher: Sequence[str], tmp_path: Path, policies: str, *swept: str) -> tuple[int, str]:
    arguments = (*SMALL, "max_iterations=1", f"policy.path={policies}", f"runs_root={tmp_path / 'runs'}")
    done = call("-m", *launcher, *arguments, *swept, cwd=tmp_path)
    return done.returncode, done.stdout + done.stderr


def test_the_documented_slurm_command_composes(composed: Callable[..., DictConfig]) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    text = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    command = text.partition("## SLURM")[2].split("```")[1].replace("\\\n", " ").split()
    assert command[:4] == ["python", "-m", "rti_exp.train", "-m"]
    config = composed(*command[4:], return_hydra_config=True)
    launcher = config.hydra.launcher
    assert launcher._target_.endswith("SlurmLauncher")
    assert (launcher.partition, launcher.timeout_min, launcher.gpus_per_node) == ("gpu", 240, 1)
    assert (launcher.cpus_per_task, launcher.mem_gb, launcher.array_parallelism) == (4, 16, 16)
    assert check(config).top.runs_root == "/shared/runs"


@pytest.mark.slow
def test_a_sweep_ends_with_its_table_and_is_skipped_when_done(
    launcher: tuple[str, ...], policy_folder: Path, tmp_path: Path
) -> None:
    code, shown = sweep(launcher, tmp_path, str(policy_folder), "gate.delta=0,5")
    assert code == 0, shown
    study = tmp_path / "runs" / "gate.delta"
    assert [run.state for run in load_runs(study)] == ["done", "done"]
    assert "Study gate.delta: 2 runs, 2 in the means" in shown
    assert "gate.delta=5" in (study / "results.md").read_text()
    before = {run.directory: fingerprint(run.directory) for run in load_runs(study)}
    code, shown = sweep(launcher, tmp_path, str(policy_folder), "gate.delta=0,5")
    assert code == 0, shown
    assert {directory: fingerprint(directory) for directory in before} == before


@pytest.mark.slow
def test_a_job_that_fails_is_exit_code_1_and_in_the_table(
    launcher: tuple[str, ...], policy_folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in policy_folder.iterdir():
        weights = path.suffix == ".safetensors"
        broken.joinpath(path.name).write_bytes(path.read_bytes()[:2000] if weights else path.read_bytes())
    code, shown = sweep(launcher, tmp_path, f"{policy_folder},{broken}")
    assert code == 1, shown
    study = tmp_path / "runs" / "policy.path"
    assert sorted(run.state for run in load_runs(study)) == ["done", "failed"]
    assert "Study policy.path: 2 runs, 1 in the means" in shown
    assert "Not in the means" in (study / "results.md").read_text()
