"""The check of licences and vulnerabilities reports everything that it did not check."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def supply() -> ModuleType:
    path = ROOT / ".ci" / "supply.py"
    if not path.is_file():
        pytest.skip("the check is part of the checkout")
    spec = importlib.util.spec_from_file_location("supply", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("stated", "verdict"),
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
def test_verdicts(supply: Any, stated: str, verdict: str) -> None:
    assert supply.verdict(stated) == verdict


def test_every_dependency_has_an_allowed_licence(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    packages = supply.dependencies()
    assert {"torch", "hydra-core", "wandb", "numpy"} <= {package.metadata["Name"].lower() for package in packages}
    assert supply.check_licences(packages) == 0, capsys.readouterr().out


def test_a_skipped_look_up_is_reported(supply: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fine, bad = {"name": "a", "version": "1", "vulns": []}, {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}]}
    skipped = {"name": "c", "skip_reason": "not found"}
    assert supply.audited({"dependencies": [fine, fine]}, 2) == 0
    assert supply.audited({"dependencies": [fine, skipped]}, 2) == 3
    assert "NOT looked up: 1; the first: c: not found" in capsys.readouterr().out
    assert supply.audited({"dependencies": [fine]}, 2) == 3
    assert supply.audited({"dependencies": [bad, skipped]}, 2) == 1
    assert "b 2: CVE-1" in capsys.readouterr().out


def test_an_unreachable_service_is_reported(
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
    output = capsys.readouterr().out
    assert "NOT looked up, the service cannot be reached (ConnectionError: no route)" in output
    (package / "__main__.py").write_text("import time; time.sleep(60)")
    assert supply.check_vulnerabilities(tmp_path / "constraints.txt", 0.5) == 3
    assert "gave no answer in 0.5 s" in capsys.readouterr().out


def test_every_dependency_is_pinned(supply: Any) -> None:
    """constraints.txt makes an installation reproducible."""
    lines = (ROOT / "constraints.txt").read_text().split()
    pins = {canonicalize_name(line.partition("==")[0]) for line in lines}
    needed = {canonicalize_name(package.metadata["Name"]) for package in supply.dependencies()}
    assert needed - pins <= {"setuptools", "pip", "wheel"}
