"""Functions compiled to machine code by Numba, where it is installed; torch's operations do without."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

_ALGEBRA = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""What the compiler may do to sums and quotients; values that are not finite stay what they are."""


def can_compile() -> bool:
    """Whether Numba is installed; a module that uses `compiled` is imported only then."""
    return importlib.util.find_spec("numba") is not None


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
