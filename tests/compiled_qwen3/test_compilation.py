"""Numba is taken where it works; where it is missing, broken or switched off, a run goes on without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rti_exp.compiled_qwen3.compilation import can_compile

SCRIPT = """
import sys
from rti_exp.compiled_qwen3.compilation import can_compile
print(can_compile(), "rti_exp.compiled_qwen3.decode_kernels" in sys.modules)
"""


def asked(*, path: Path | None = None, **environment: str) -> tuple[str, str]:
    """What a fresh process says, `path` before all others to import from."""
    root = Path(__file__).parents[2]
    folders = [str(folder) for folder in (path, root) if folder is not None]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip(), process.stderr


def test_it_compiles_here() -> None:
    assert can_compile()


def test_a_numba_that_cannot_be_imported_is_told_in_a_line_and_done_without(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text('raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 9.9.")\n')
    said, told = asked(path=tmp_path)
    assert said == "False False"
    assert told.splitlines() == [
        "compiled code does not work here (ImportError: Numba needs NumPy 2.4 or less. Got NumPy 9.9.): "
        "torch's operations are taken instead"
    ]


def test_switched_off() -> None:
    assert asked(NUMBA_DISABLE_JIT="1") == ("False False", "")


def test_nothing_is_lost_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """All folders for the compiled code are files."""
    package = tmp_path / "rti_exp"
    package.mkdir()
    shutil.copy(Path(__file__).parents[2] / "rti_exp" / "compiled_qwen3" / "compilation.py", package)
    (package / "__init__.py").touch()
    (package / "__pycache__").write_text("a file")
    cache = tmp_path / "cache"
    cache.write_text("a file")
    said, told = asked(path=tmp_path, NUMBA_CACHE_DIR=str(cache), HOME=str(cache), XDG_CACHE_HOME=str(cache))
    assert (said, told) == ("True False", "")
