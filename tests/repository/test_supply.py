"""The command that looks at licences and vulnerabilities tells what it did not look at."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def supply() -> ModuleType:
    path = ROOT / ".ci" / "supply.py"
    if not path.is_file():
        pytest.skip("this is no checkout")
    spec = importlib.util.spec_from_file_location("supply", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("MIT", "fine"),
        ("Apache-2.0 AND BSD-3-Clause", "fine"),
        ("Mozilla Public License 2.0 (MPL 2.0)", "fine"),
        ("GPL-3.0-only", "forbidden"),
        ("GNU Affero General Public License v3", "forbidden"),
        ("MIT AND GPL-2.0-or-later", "forbidden"),
        ("MIT OR GPL-2.0-or-later", "fine"),
        ("", "unknown"),
        ("see the file", "unknown"),
        ("SUBMITTED", "unknown"),
    ],
)
def test_verdicts(supply: Any, said: str, verdict: str) -> None:
    assert supply.verdict(said) == verdict


def test_all_that_the_project_needs_is_under_an_allowed_licence(
    supply: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = supply.dependencies()
    assert {"torch", "hydra-core", "wandb", "numpy"} <= {one.metadata["Name"].lower() for one in found}
    assert supply.check_licences(found) == 0, capsys.readouterr().out


def test_what_was_not_looked_up_is_not_called_fine(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = {"name": "a", "version": "1", "vulns": []}, {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}]}
    skipped = {"name": "c", "skip_reason": "not found"}
    assert supply.audited({"dependencies": [fine, fine]}, 2) == 0
    assert supply.audited({"dependencies": [fine, skipped]}, 2) == 3
    assert "NOT looked up: 1; the first: c: not found" in capsys.readouterr().out
    assert supply.audited({"dependencies": [fine]}, 2) == 3
    assert supply.audited({"dependencies": [bad, skipped]}, 2) == 1
    assert "b 2: CVE-1" in capsys.readouterr().out


def test_a_service_that_cannot_be_reached_is_said(
    supply: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for pip-audit that fails as it does without a network."""
    package = tmp_path / "pip_audit"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; sys.exit('ConnectionError: no route')")
    (tmp_path / "constraints.txt").write_text("# pinned\na==1\nb==2\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("pip_audit", None)
    assert supply.check_vulnerabilities(tmp_path / "constraints.txt", 60.0) == 3
    told = capsys.readouterr().out
    assert "NOT looked up, the service cannot be reached (ConnectionError: no route)" in told
    (package / "__main__.py").write_text("import time; time.sleep(60)")
    assert supply.check_vulnerabilities(tmp_path / "constraints.txt", 0.5) == 3
    assert "gave no answer in 0.5 s" in capsys.readouterr().out


def test_every_dependency_is_pinned(supply: Any) -> None:
    """constraints.txt is what makes a set-up reproducible."""
    pins = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    needed = {one.metadata["Name"].lower().replace("_", "-").replace(".", "-") for one in supply.dependencies()}
    assert needed - {pin.replace(".", "-") for pin in pins} <= {"setuptools", "pip", "wheel"}
