"""Signals: ends that are asked for from outside, and children that end with their parent."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def handled(numbers: Sequence[signal.Signals], handler: Callable[[int, object], None]) -> Iterator[None]:
    """`handler` gets these signals inside; then whoever got them before. For the main thread."""
    former = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


def signals_as_interrupt() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt inside, as Ctrl-C does. For the main thread."""

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    return handled((signal.SIGTERM, signal.SIGHUP), handler)


def end_with_the_parent() -> None:
    """Have a SIGTERM sent to this process when the one that started it is gone, however that ended (Linux)."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGTERM))
