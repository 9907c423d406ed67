from __future__ import annotations

from pathlib import Path

import pytest

from rti_exp.analysis.arm_summary import Summary, summarize
from rti_exp.analysis.study import Study, load_study
from tests.support import studies


@pytest.fixture(scope="session")
def delta_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `studies.write_delta_study`; tests only read it."""
    return studies.write_delta_study(tmp_path_factory.mktemp("runs") / "delta")


@pytest.fixture(scope="session")
def study(delta_study: Path) -> Study:
    return load_study(delta_study)


@pytest.fixture(scope="session")
def summary(study: Study) -> Summary:
    return summarize(study)
