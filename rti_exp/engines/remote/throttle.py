"""How fast an endpoint is asked: concurrency, requests per minute, requested pauses, and rests while it is down."""

from __future__ import annotations

import asyncio
import time

from rti_exp.engines.remote.failures import OUTAGES, Cause, RemoteFailure


class Throttle:
    """The limits of one endpoint. `slots` limits the requests in flight.

    The endpoint counts as down once as many requests in a row as run at once were lost to an outage. Requests are
    then lost without being sent for `rest_seconds`. After that, each request gets a single try until one succeeds.
    So an endpoint that stays down costs the patience of a few requests, not of every request.
    """

    def __init__(self, *, concurrency: int, requests_per_minute: float, rest_seconds: float) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._interval = 60.0 / requests_per_minute
        self._rest_seconds = rest_seconds
        self._next_start = 0.0
        self._lost_in_a_row = 0
        self._rest_until = 0.0
        self._last_failure = ""

    def pause(self, seconds: float) -> None:
        """No request starts within the next `seconds`."""
        self._next_start = max(self._next_start, time.monotonic() + seconds)

    async def next_turn(self, delay: float = 0.0) -> None:
        """Returns when the next request may be sent, but not before `delay` seconds."""
        await asyncio.sleep(delay)
        while (wait := self._next_start - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        self._next_start = max(self._next_start, time.monotonic()) + self._interval

    def attempts(self, most: int) -> int:
        """How often a request may be tried now: `most`, or once while the endpoint counts as down.

        Raises:
            RemoteFailure: the endpoint rests.
        """
        if self._lost_in_a_row < self._concurrency:
            return most
        if time.monotonic() < self._rest_until:
            raise RemoteFailure(Cause.DOWN, f"not sent, because the endpoint is down ({self._last_failure})")
        return 1

    def record(self, failure: RemoteFailure | None) -> None:
        """Notes how a request ended, after all its tries."""
        if failure is None:
            self._lost_in_a_row = 0
        elif failure.cause in OUTAGES:
            self._lost_in_a_row += 1
            self._rest_until, self._last_failure = time.monotonic() + self._rest_seconds, str(failure)
