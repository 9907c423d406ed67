"""The wheel works from an empty folder: configs, sweeps and embedded policies are in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from rti_exp.config import paths
from rti_exp.config.paths import PACKAGE, assets_root, builtin_policies
from rti_exp.config.settings import SettingsError
from rti_exp.runs import read_status

ROOT = PACKAGE.parent
CHECKOUT = ROOT / "pyproject.toml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CHECKOUT.is_file():
        pytest.skip("not a checkout")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment that holds the wheel, and sees this one's packages behind it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    site.joinpath("this_environment.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def call(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-m", "rti_exp.train", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_what_is_not_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("conf", "sweeps"):
        for path in ROOT.joinpath(folder).rglob("*.yaml"):
            assert f"rti_exp/_assets/{path.relative_to(ROOT)}" in names
    for path in (*PACKAGE.joinpath("policies").rglob("*"), *PACKAGE.joinpath("analysis/templates").iterdir()):
        if path.is_file():
            assert str(path.relative_to(ROOT)) in names
    assert "hydra_plugins/rti_exp_launcher.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "conf/")) for name in names)


def test_help_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = call(installed, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python -m rti_exp.train -m gate.delta=0,5,20,inf" in done.stdout
    shown = call(installed, "--cfg", "hydra", "+sweeps=delta_study", cwd=tmp_path)
    assert "gate.delta: 0,1.5,3,5,10,20,inf" in shown.stdout
    where = call(installed, "--info", "searchpath", cwd=tmp_path)
    assert "_assets/conf" in where.stdout
    assert str(ROOT / "conf") not in where.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_sweep_from_an_empty_folder(installed: Path, policy_folder: Path, tmp_path: Path) -> None:
    arguments = ["max_iterations=1", "tasks_per_iteration=2", "group_size=2", "eval.tasks=0", "logger=none"]
    arguments += ["rollout.max_context=1024", "rollout.max_tokens=8", f"policy.path={policy_folder}"]
    done = call(installed, "-m", "gate.delta=0,inf", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [path for path in (tmp_path / "runs" / "gate.delta").iterdir() if path.is_dir()]
    assert [(read_status(path) or {}).get("state") for path in runs] == ["done", "done"]
    assert (tmp_path / "runs" / "gate.delta" / "results.md").is_file()


def test_policies_are_found_by_name_and_by_folder(policy_folder: Path) -> None:
    assert paths.policy_folder(str(policy_folder)) == policy_folder
    for name in builtin_policies():
        assert paths.policy_folder(f"builtin:{name}") == PACKAGE / "policies" / name
    with pytest.raises(SettingsError, match=r"corrector\.path='builtin:nobody': there is no .*nobody/config\.json"):
        paths.policy_folder("builtin:nobody", "corrector.path")


def test_assets_are_those_of_the_checkout() -> None:
    assert assets_root() == ROOT
