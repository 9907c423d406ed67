"""The package without `rti_exp/compiled_qwen3` and the one line that names it: everything works, only slower.

A copy of the package runs the tests of the method's identities, of golden behaviour and of exact resumes, and a short
run. Those of bit-equality with stored rows are skipped there: transformers rounds otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "rti_exp/compiled_qwen3"
LINE = "from rti_exp.compiled_qwen3 import fast_path  # noqa: E402, F401, F811\n"
TESTS = (
    "tests/guarantees/test_identities.py",
    "tests/guarantees/test_golden.py::test_the_golden_run_is_this_one",
    "tests/guarantees/test_golden.py::test_on_any_machine_the_first_iteration_is_equal_and_the_rest_is_near",
    "tests/guarantees/test_exactness.py::test_two_runs_and_one_that_was_broken_off_are_equal[rti]",
    "tests/engines/test_local.py",
)
SHORT_RUN = ("logger=none", "max_iterations=1", "tasks_per_iteration=2", "group_size=2", "eval.tasks=2", "probe=none")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project without the folder and the line."""
    folder = tmp_path_factory.mktemp("without") / "project"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "compiled_qwen3", "*.egg-info")
    for part in ("rti_exp", "conf", "tests", "hydra_plugins", "sweeps"):
        shutil.copytree(ROOT / part, folder / part, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", folder)
    seam = folder / "rti_exp" / "models" / "fast_path.py"
    text = seam.read_text(encoding="utf-8")
    assert text.count(LINE) == 1
    seam.write_text(text.replace(LINE, ""), encoding="utf-8")
    return folder


def run_python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout


def test_nothing_else_names_the_folder() -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.joinpath("rti_exp").rglob("*.py")
        if "rti_exp.compiled_qwen3" in path.read_text(encoding="utf-8") and PACKAGE not in path.as_posix()
    ]
    assert users == ["rti_exp/models/fast_path.py"]


def test_the_compiled_code_imports_nothing_of_the_package() -> None:
    imports = [
        line
        for path in ROOT.joinpath(PACKAGE).glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("from rti_exp", "import rti_exp"))
    ]
    assert imports
    assert [line for line in imports if "rti_exp.compiled_qwen3" not in line] == []


def test_there_is_no_fast_path(copied: Path) -> None:
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from tests.support.fakes import tiny_model\n"
        "import rti_exp.models.fast_path as seam\n"
        "print(seam.__file__, seam.fast_path(tiny_model()))"
    )
    assert run_python(copied, "-c", code).split() == [str(copied / "rti_exp" / "models" / "fast_path.py"), "None"]


@pytest.mark.slow
@pytest.mark.parametrize("tests", TESTS)
def test_the_guarantees_hold(copied: Path, tests: str) -> None:
    summary = run_python(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests).splitlines()[-1]
    assert " passed" in summary
    assert "skipped" not in summary


@pytest.mark.slow
def test_a_short_run(copied: Path, tmp_path: Path) -> None:
    run_python(copied, "-m", "rti_exp.train", *SHORT_RUN, f"runs_root={tmp_path}")
    (metrics,) = tmp_path.glob("*/*/metrics.jsonl")
    assert '"kind":"train"' in metrics.read_text(encoding="utf-8").replace(" ", "")
