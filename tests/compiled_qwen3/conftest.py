"""All tests here need the compiled code, which runs on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rti_exp.compiled_qwen3.numba_compiler import is_available

collect_ignore_glob = [] if is_available() else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
