from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs import SMALL


@pytest.fixture
def small(policy_folder: Path, tmp_path: Path) -> tuple[str, ...]:
    return (*SMALL, f"policy.path={policy_folder}", f"runs_root={tmp_path / 'runs'}")
