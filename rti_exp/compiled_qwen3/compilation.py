"""Functions compiled to machine code by Numba, where it works; torch's operations do without."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ALGEBRA = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""What the compiler may do to sums and quotients; values that are not finite stay what they are."""

log = logging.getLogger(__name__)


_failed: list[str] = []
"""What went wrong in this process, if anything did."""


def can_compile() -> bool:
    """Whether Numba is there and works; a module that uses `compiled` is imported only then.

    It is tried out, once for a process: a Numba that is not for the NumPy beside it says so at its import.
    """
    return not _failed and _works()


@functools.cache
def _works() -> bool:
    if importlib.util.find_spec("numba") is None:
        return False
    with falling_back() as works:
        from numba.core import config

        settings: Any = config
        works.append(not settings.DISABLE_JIT and compiled(_twice)(21) == 42)
    return works == [True]


@contextmanager
def falling_back() -> Iterator[list[bool]]:
    """For trying out what is compiled: what goes wrong is logged in a line, and nothing stands in the list.

    From then on `can_compile` is false. Compiled code is kept on a disk, which may be full, and what is read from there
    may be damaged.
    """
    works: list[bool] = []
    try:
        yield works
    except Exception as error:
        works.clear()
        reason = f"{type(error).__name__}: {error}"
        _failed.append(reason)
        log.warning("compiled code does not work here (%s): torch's operations are taken instead", reason)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first call for the types of its arguments, and kept on disk for later processes.

    Numba looks at the file that a function is in to see whether what is kept is of the present source. So a compiled
    function may call those of its own file only; and after a change of the flags below, or for NUMBA_BOUNDSCHECK=1, set
    NUMBA_CACHE_DIR to an empty folder.
    """
    import numba

    jit: Any = numba.njit
    arguments: dict[str, Any] = {"fastmath": _ALGEBRA, "error_model": "numpy"}
    try:
        return jit(cache=True, **arguments)(function)
    except RuntimeError:  # no folder to keep it in
        return jit(**arguments)(function)


def _twice(number: int) -> int:
    return 2 * number
