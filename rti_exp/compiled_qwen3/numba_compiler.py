"""The Numba decorator of all kernels.

Numba keeps machine code on disk and checks only the file of the decorated function for changes. A kernel therefore
calls kernels of its own file only. That is why `decode_kernels`, `layer_kernels` and `attention_kernels` each have an
`exponentials`, and two of them a norm, a gate and a rotation: with a shared module, a change there would leave the
other files' stored code in use. (Numba documents this; it holds for `inline="always"` too.)
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

_FAST_MATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""Reordering of sums and quotients is allowed; infinity and NaN keep their meaning."""


def is_available() -> bool:
    """Whether Numba is installed and not switched off by NUMBA_DISABLE_JIT."""
    if importlib.util.find_spec("numba") is None:
        return False
    from numba.core import config

    settings: Any = config
    return not settings.DISABLE_JIT


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles `function` at its first call for each combination of argument types, and stores the code on disk.

    After a change of the flags below, or for NUMBA_BOUNDSCHECK=1, set NUMBA_CACHE_DIR to an empty folder.
    """
    import numba

    jit: Any = numba.njit
    flags: dict[str, Any] = {"fastmath": _FAST_MATH, "error_model": "numpy"}
    try:
        return jit(cache=True, **flags)(function)
    except RuntimeError:  # no writable folder for the cache
        return jit(**flags)(function)
