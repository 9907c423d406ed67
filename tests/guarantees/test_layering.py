"""Imports go one way, and heavy modules are imported late."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rti_exp

PACKAGE = Path(rti_exp.__file__).parent
LAYERS: tuple[tuple[str, ...], ...] = (
    ("types", "randomness"),
    ("processes",),
    ("runs",),
    ("config",),
    ("compiled_qwen3",),
    ("models", "objective"),
    ("engines",),
    ("envs",),
    ("rollout",),
    ("intervention",),
    ("training",),
    ("tracking", "analysis"),
    ("experiment",),
    ("pretraining",),
    ("evaluation",),
    ("sweep",),
    (
        "train",
        "evaluate",
        "plan",
        "report",
        "article",
        "play",
        "warmstart",
        "roles",
        "compute",
        "wandb_fetch",
        "wandb_report",
        "export",
    ),
)
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ANALYSIS_MAY_IMPORT = {"types", "randomness", "config", "runs", "objective", "analysis"}
HEAVY = ("torch", "numba", "pytorch_lightning", "transformers", "wandb", "scipy", "pandas", "numpy", "matplotlib")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """Parts of the package that a file imports, also inside functions; imports for types only are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "rti_exp":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rti_exp."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("rti_exp.")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if part_of(path) != "__init__")


def test_every_part_has_a_layer() -> None:
    assert {part_of(path) for path in FILES} <= set(RANKS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_imports_rightwards(path: Path) -> None:
    own = part_of(path)
    wrong = {part for part in imported_parts(path) if RANKS[part] > RANKS[own]}
    assert not wrong, f"{own} imports {sorted(wrong)}, which stand to its right"


def test_analysis_reads_runs_only() -> None:
    for path in PACKAGE.joinpath("analysis").rglob("*.py"):
        rule = {"intervention"} if path.stem == "leaks" else set()  # the leak rule, which knows `types` only
        assert imported_parts(path) <= ANALYSIS_MAY_IMPORT | rule, path


def test_only_build_instantiates() -> None:
    calling = [path.name for path in FILES if "hydra.utils" in path.read_text(encoding="utf-8")]
    assert calling == ["parts.py"]


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_analysis_imports_no_torch() -> None:
    names = sorted(f"rti_exp.analysis.{path.stem}" for path in PACKAGE.joinpath("analysis").glob("[a-z]*.py"))
    imports = "\n".join(f"import {name}" for name in [*names, "rti_exp.report"])
    run_python(f"import sys\n{imports}\nassert 'torch' not in sys.modules")


def test_entry_point_imports_nothing_heavy() -> None:
    run_python(f"import sys, rti_exp.train\nassert not set({HEAVY!r}) & set(sys.modules)")


def test_help_and_bad_config_import_nothing_heavy() -> None:
    for argument in ("--help", "gate.delta=nan", "gate.dleta=1"):
        run_python(
            "import sys\n"
            "from rti_exp import train\n"
            f"sys.argv = ['rti_exp.train', {argument!r}]\n"
            "try:\n    train.main()\nexcept SystemExit:\n    pass\n"
            f"assert not set({HEAVY!r}) & set(sys.modules)"
        )


def test_the_embedded_world_imports_no_torch() -> None:
    run_python("import sys, rti_exp.envs.town\nassert 'torch' not in sys.modules")


def test_no_logger_imports_no_wandb() -> None:
    run_python("import sys, rti_exp.tracking.loggers, rti_exp.experiment.build\nassert 'wandb' not in sys.modules")
