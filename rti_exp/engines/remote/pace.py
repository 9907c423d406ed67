"""How fast an endpoint is asked: requests at once, requests a minute, pauses that it asks for, and a rest when down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rti_exp.engines.remote.failures import OF_THE_ENDPOINT, Cause, RemoteFailure


class Pace:
    """Lets requests through. Lives in one event loop.

    Once as many requests in a row as run at once were lost for reasons of the endpoint (all their tries), the
    endpoint counts as down: requests are lost at once for `rest_seconds`. Then one request finds out, by a single
    try, whether it is back, while the others wait for that. So an endpoint that is down costs the patience of one
    request, not that of every request.
    """

    def __init__(self, *, concurrency: int, requests_per_minute: float, rest_seconds: float) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._interval = 60.0 / requests_per_minute
        self._rest_seconds = rest_seconds
        self._next_start = 0.0
        self._lost_in_a_row = 0
        self._down_until: float | None = None
        self._down_because = ""
        self._probe = asyncio.Lock()

    def pause(self, seconds: float) -> None:
        """No request starts within the next `seconds`."""
        self._next_start = max(self._next_start, time.monotonic() + seconds)

    async def start(self) -> None:
        """Returns when the next request may be sent."""
        while (wait := self._next_start - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        self._next_start = max(self._next_start, time.monotonic()) + self._interval

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[bool]:
        """A place among the requests under way; True if the request is the one that finds out whether it is back.

        Raises:
            RemoteFailure: the endpoint is down.
        """
        async with self._slots:
            if self._down_until is None:
                yield False
                return
            async with self._probe:
                if self._down_until is not None:
                    if time.monotonic() < self._down_until:
                        raise RemoteFailure(Cause.DOWN, f"not asked, since the endpoint is down ({self._down_because})")
                    yield True
                    return
            yield False

    def ended(self, failure: RemoteFailure | None) -> None:
        """What became of a request, all of its tries."""
        if failure is None:
            self._lost_in_a_row, self._down_until = 0, None
        elif failure.cause in OF_THE_ENDPOINT:
            self._lost_in_a_row += 1
            if self._lost_in_a_row >= self._concurrency:
                self._down_until, self._down_because = time.monotonic() + self._rest_seconds, str(failure)
