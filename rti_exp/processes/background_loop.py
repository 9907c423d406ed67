"""One asyncio event loop in a background thread, so that plain functions can run coroutines."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


_lock = threading.Lock()


@functools.cache
def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="background event loop", daemon=True).start()
    return loop


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:  # functools.cache alone lets two first callers create two loops
        return _new_loop()


def _after_fork() -> None:
    _new_loop.cache_clear()  # threads do not survive a fork
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the coroutine's result. An interrupt of the caller (Ctrl-C) cancels the coroutine."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def cancel_all() -> None:
    """Cancels all work on the loop, before the process ends. Callers waiting in `run` get CancelledError."""
    loop = _loop()
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
