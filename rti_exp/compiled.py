"""Functions compiled to machine code by Numba, where it works; torch's operations do without."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

_ALGEBRA = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""What the compiler may do to sums and quotients; values that are not finite stay what they are."""

log = logging.getLogger(__name__)


@functools.cache
def can_compile() -> bool:
    """Whether Numba is there and works; a module that uses `compiled` is imported only then.

    It is tried out, once for a process: a Numba that is not for the NumPy beside it says so at its import, and a full
    disk when what was compiled is to be kept.
    """
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        from numba.core import config

        settings: Any = config
        return not settings.DISABLE_JIT and compiled(_twice)(21) == 42
    except Exception as error:
        log.warning("Numba does not work here (%s: %s): torch's operations are taken", type(error).__name__, error)
        return False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at its first call for the types of its arguments, and kept on disk for later processes.

    Numba looks at the file that a function is in to see whether what is kept is of the present source: a compiled
    function may call those of its own file only.
    """
    import numba

    jit: Any = numba.njit
    arguments: dict[str, Any] = {"fastmath": _ALGEBRA, "error_model": "numpy", "nogil": True}
    try:
        return jit(cache=True, **arguments)(function)
    except RuntimeError:  # no folder to keep it in
        return jit(**arguments)(function)


def _twice(number: int) -> int:
    return 2 * number
