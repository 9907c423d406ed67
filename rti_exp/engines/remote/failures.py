"""What can go wrong with a request, told apart once, where it comes from."""

from __future__ import annotations

import email.utils
import enum
import re
import time
from collections.abc import Mapping

from rti_exp.engines.base import EngineUnavailable, EngineUnusable

MAX_DETAIL = 300
"""Characters of a server's own words that are kept."""
RETRIED_STATUSES = frozenset({408, 409, 425, 429})
NO_ACCESS = frozenset({401, 403, 404})
_TOO_LONG = re.compile(r"context[ _]length|context window|maximum context|too many tokens", re.IGNORECASE)
QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")


class Cause(enum.StrEnum):
    """Why a request was lost."""

    CONNECTION = "connection"
    """Refused, reset, not resolved, or cut off in the middle of an answer."""
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    BAD_REPLY = "bad_reply"
    """An answer that is not what the API says."""
    WRONG_MODEL = "wrong_model"
    REJECTED = "rejected"
    """The endpoint does not want this request: another try would not help."""
    TOO_LONG = "too_long"
    """The conversation, or the answer that it may have, does not fit into the model's context."""
    NO_ACCESS = "no_access"
    """The key, the model's name or the address is not right."""
    QUOTA = "quota"
    """The account's, or our own `max_cost`."""
    DOWN = "down"
    """Not asked: the endpoint failed just before."""


OF_THE_ENDPOINT = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.RATE_LIMIT, Cause.SERVER_ERROR})
"""Causes that say that the endpoint is down, rather than that one request went wrong."""
RETRIED = OF_THE_ENDPOINT | {Cause.BAD_REPLY}


class RemoteFailure(EngineUnavailable):
    """A request is lost. `retry_after` are the seconds that the server asked to wait, if it did."""

    def __init__(self, cause: Cause, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after

    @property
    def retried(self) -> bool:
        """Whether another try may help."""
        return self.cause in RETRIED


class RemoteDown(EngineUnusable):
    """Too much is lost for the job to go on, or the endpoint refuses us."""


def classified(error: Exception, seconds: float) -> RemoteFailure:
    """The failure that an error of the client is; `seconds` is how long the try was allowed to take.

    Raises:
        Exception: the error itself, if it is none of an endpoint.
    """
    import openai  # pyright: ignore[reportMissingImports]

    if isinstance(error, RemoteFailure):
        return error
    if isinstance(error, openai.APITimeoutError):
        return RemoteFailure(Cause.TIMEOUT, f"{type(error.__cause__).__name__} (connect_seconds, read_seconds)")
    if isinstance(error, TimeoutError):
        return RemoteFailure(Cause.TIMEOUT, f"no whole answer within {seconds:.3g} s")
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__
        said = f"{type(cause).__name__}: {cause}" if cause is not None else str(error)
        return RemoteFailure(Cause.CONNECTION, said[:MAX_DETAIL])
    if isinstance(error, openai.APIStatusError):
        status: openai.APIStatusError = error
        return _of_status(status.status_code, _said(status), status.response.headers)
    raise error


def _said(error: Exception) -> str:
    """The server's own words."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, Mapping) else None
    return str(message or body or error)[:MAX_DETAIL]


def _of_status(status: int, said: str, headers: Mapping[str, str]) -> RemoteFailure:
    detail = f"status {status}: {said}"
    if status in NO_ACCESS:
        return RemoteFailure(Cause.NO_ACCESS, detail)
    if status == 402 or any(code in said for code in QUOTA_CODES):
        return RemoteFailure(Cause.QUOTA, detail)
    if status == 429:
        return RemoteFailure(Cause.RATE_LIMIT, detail, retry_after=retry_after(headers))
    if status >= 500 or status in RETRIED_STATUSES:
        return RemoteFailure(Cause.SERVER_ERROR, detail, retry_after=retry_after(headers))
    return RemoteFailure(Cause.TOO_LONG if _TOO_LONG.search(said) else Cause.REJECTED, detail)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that `Retry-After` asks for, a number or a date; None without one that can be read."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except (TypeError, ValueError, OverflowError):
                continue
        if seconds == seconds:  # not NaN
            return max(seconds, 0.0)
    return None
