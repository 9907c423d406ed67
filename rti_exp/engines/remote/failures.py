"""Why a request to an endpoint failed, classified once, where the error occurs."""

from __future__ import annotations

import email.utils
import enum
import math
import re
import time
from collections.abc import Mapping

from rti_exp.engines.base import EngineUnavailable, EngineUnusable
from rti_exp.engines.remote.messages import BadReply, FilteredReply

MAX_DETAIL = 300
"""Characters of the server's own message that are kept."""
_TOO_LONG = re.compile(r"context[ _]length|context window|maximum context|too many tokens", re.IGNORECASE)
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")


class Cause(enum.StrEnum):
    """Why a request was lost."""

    CONNECTION = "connection"
    """Refused, reset, not resolved, or closed in the middle of an answer."""
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate_limit"
    SERVER_ERROR = "server_error"
    BAD_REPLY = "bad_reply"
    """The answer does not follow the API."""
    WRONG_MODEL = "wrong_model"
    REJECTED = "rejected"
    """The endpoint refused this request; a retry would not help."""
    TOO_LONG = "too_long"
    """The conversation and its answer do not fit into the model's context window."""
    NO_ACCESS = "no_access"
    """The key, the model's name or the address is wrong."""
    QUOTA = "quota"
    """The account's quota is used up."""
    DOWN = "down"
    """Not sent, because the endpoint had just failed."""


OUTAGES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.RATE_LIMIT, Cause.SERVER_ERROR})
"""Causes that mean that the endpoint is down, not that one request went wrong."""


class RemoteFailure(EngineUnavailable):
    """A request is lost. `retry_after` is the wait in seconds that the server asked for, if it did."""

    def __init__(self, cause: Cause, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after

    def may_pass(self, max_wait_seconds: float) -> bool:
        """Whether a retry may succeed."""
        transient = self.cause in OUTAGES or self.cause is Cause.BAD_REPLY
        return transient and (self.retry_after or 0.0) <= max_wait_seconds


class RemoteDown(EngineUnusable):
    """Too many requests are lost for the job to continue, or the endpoint denies access."""


def classify(error: Exception, seconds: float) -> RemoteFailure:
    """The failure behind an error of the client or of the reply's reader.

    Args:
        seconds: the time limit of the try.

    Raises:
        Exception: `error` itself, if no endpoint caused it.
    """
    import openai  # pyright: ignore[reportMissingImports]

    if isinstance(error, FilteredReply):
        return RemoteFailure(Cause.REJECTED, str(error))
    if isinstance(error, BadReply):
        return RemoteFailure(Cause.BAD_REPLY, str(error))
    if isinstance(error, openai.APITimeoutError):
        return RemoteFailure(Cause.TIMEOUT, f"{type(error.__cause__).__name__} (connect_seconds, read_seconds)")
    if isinstance(error, TimeoutError):
        return RemoteFailure(Cause.TIMEOUT, f"no complete answer within {seconds:.3g} s")
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return RemoteFailure(Cause.CONNECTION, f"{type(cause).__name__}: {cause}"[:MAX_DETAIL])
    if isinstance(error, openai.APIStatusError):
        body = error.body
        message = body.get("message") if isinstance(body, Mapping) else None
        return _of_status(error.status_code, str(message or body or error)[:MAX_DETAIL], error.response.headers)
    raise error


def _of_status(status: int, message: str, headers: Mapping[str, str]) -> RemoteFailure:
    cause = Cause.TOO_LONG if _TOO_LONG.search(message) else Cause.REJECTED
    if status in (401, 403, 404):
        cause = Cause.NO_ACCESS
    elif status == 402 or any(code in message for code in _QUOTA_CODES):
        cause = Cause.QUOTA
    elif status == 429:
        cause = Cause.RATE_LIMIT
    elif status >= 500 or status in (408, 409, 425):
        cause = Cause.SERVER_ERROR
    return RemoteFailure(cause, f"status {status}: {message}", retry_after=retry_after(headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait in seconds that `Retry-After` asks for, as a number or as a date; None without a readable one."""
    text = headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
