"""One event loop in a thread of its own, for all remote models of a process: callers stay plain functions."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _loop() -> asyncio.AbstractEventLoop:
    """This process's loop; after a fork, a new one."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="remote models", daemon=True).start()
            _loops.clear()
            _loops[os.getpid()] = loop
        return loop


def cancel_all() -> None:
    """End all that is under way: for a process that is to end. Whoever waits for it gets a CancelledError."""
    loop = _loops.get(os.getpid())
    if loop is not None:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result. An interrupt of the caller (Ctrl-C) cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
