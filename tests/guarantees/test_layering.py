"""Imports go one way, as CONTRIBUTING.md draws it, without cycles; heavy modules are imported late."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import rti_exp

PACKAGE = Path(rti_exp.__file__).parent
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"


def layers() -> list[list[str]]:
    """The picture: each line names the folders or modules of a layer, then says what they are."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    picture = text.partition("<!-- layers -->\n```\n")[2].partition("\n```")[0]
    return [line.partition("  ")[0].split() for line in picture.splitlines()]


LAYERS = layers()
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
COMMANDS = len(LAYERS) - 1
"""The rank of the commands, which may use each other."""
ANALYSIS_MAY_IMPORT = {"types", "randomness", "config", "runs", "objective", "analysis"}
HEAVY = ("torch", "numba", "pytorch_lightning", "transformers", "wandb", "scipy", "pandas", "numpy", "matplotlib")


def part_of(module: str) -> str:
    """The folder or top-level module, as in the picture."""
    return module.split(".")[1] if "." in module else "__init__"


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(path: Path) -> set[str]:
    """The modules of the package that a file imports: at its top, inside functions, and for types only."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rti_exp":
            assert node.module is not None
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name.startswith("rti_exp.")}
    return imported - {module_of(path)}


GRAPH = {module: imports_of(path) for module, path in MODULES.items()}


def test_every_part_has_a_layer() -> None:
    assert {part_of(module) for module in MODULES} == {*RANKS, "__init__"}


@pytest.mark.parametrize("module", [module for module in MODULES if "." in module])
def test_imports_point_upwards_in_the_picture(module: str) -> None:
    part = part_of(module)
    others = {part_of(name) for name in GRAPH[module]} - {part}
    wrong = {other for other in others if RANKS[other] >= RANKS[part] and RANKS[part] != COMMANDS}
    assert not wrong, f"{module} imports {sorted(wrong)}, which are not above {part}"


def test_there_is_no_import_cycle() -> None:
    graphlib.TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names the cycle


def test_few_modules_stand_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 20


def test_analysis_reads_runs_only() -> None:
    for module in MODULES:
        if part_of(module) == "analysis":
            imported = GRAPH[module] - {"rti_exp.intervention.leak_rule"}  # which imports types only
            assert {part_of(name) for name in imported} <= ANALYSIS_MAY_IMPORT, module


def test_only_build_instantiates() -> None:
    calling = [path.name for path in MODULES.values() if "hydra.utils" in path.read_text(encoding="utf-8")]
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
