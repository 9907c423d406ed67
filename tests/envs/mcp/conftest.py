"""Servers that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rti_exp.envs.mcp import Mcp
from rti_exp.envs.mcp.session import close_all
from rti_exp.experiment.parts import default_environment
from tests.support.mcp import (
    COUNTER,
    START,
    gone,
)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    path = tmp_path_factory.mktemp("server") / "counter.py"
    path.write_text(COUNTER, encoding="utf-8")
    yield ["{python}", str(path)]
    close_all()
    assert gone(str(path))  # also the server that hung


@pytest.fixture(scope="module")
def navigation() -> Mcp:
    return default_environment("mcp_navigation", seconds=START)
