"""Signals: ends that are asked for from outside, and children that end with their parent."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does. For the main thread."""

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


def end_with_the_parent() -> None:
    """Have a SIGTERM sent to this process when the one that started it is gone, however that ended (Linux)."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGTERM))
