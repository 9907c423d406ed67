"""Why a request to an endpoint failed, classified once, where the error occurs."""

from __future__ import annotations

import email.utils
import enum
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rti_exp.engines.base import EngineUnavailable, EngineUnusable
from rti_exp.engines.remote.messages import BadReply, ErrorReply, FilteredReply

MAX_DETAIL = 300
"""Characters of the server's own message that are kept."""
_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|contextwindow|maximum context|context the overflows|too many tokens"
    r"|prompt too long|(prompt|input|conversation|request) (is|are) too long|input length|prompt length"
    r"|input token count|maximum model length|must have less than \d+ tokens|inputs` tokens \+ `max_new_tokens`"
    r"|string_above_max_length",
    re.IGNORECASE,
)
"""The words of OpenAI, vLLM, SGLang, llama.cpp, TGI, Ollama, LM Studio, Anthropic, Gemini, Mistral, xAI."""
_WORDS = ("code", "type", "error_type", "status", "message", "error", "detail", "loc", "msg")
"""Where servers say what is wrong. Other keys may repeat the request, whose text can say anything."""
_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
_RATE = re.compile(r"rate.?limit|per minute|per day", re.IGNORECASE)
_REFUSED = re.compile(
    r"unsupported|not supported|does(n't| not) support|unrecognized|unknown|unexpected|not permitted|not allowed"
    r"|deprecated|cannot both|only the default|only be set to",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"\b(max_completion_tokens|max_tokens|temperature|top_p|seed)\b")
_REMEDIES = {
    "max_tokens": "max_tokens_key=max_completion_tokens",
    "max_completion_tokens": "max_tokens_key=max_tokens",
    "temperature": "send_temperature=false",
    "top_p": "send_temperature=false",
    "seed": "send_seed=false",
}
"""A parameter that an endpoint may refuse -> the setting that stops sending it."""


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
    PARAMETER = "parameter"
    """The endpoint does not take a parameter that every request carries; `RemoteFailure.remedy` is the setting."""
    NO_ACCESS = "no_access"
    """The key, the model's name or the address is wrong."""
    QUOTA = "quota"
    """The account's quota is used up."""
    DOWN = "down"
    """Not sent, because the endpoint had just failed."""


OUTAGES = frozenset({Cause.CONNECTION, Cause.TIMEOUT, Cause.RATE_LIMIT, Cause.SERVER_ERROR})
"""Causes that mean that the endpoint is down, not that one request went wrong."""


class RemoteFailure(EngineUnavailable):
    """A request is lost. `retry_after` is the wait in seconds that the server asked for, if it did; `remedy` is the
    setting of the endpoint (KEY=VALUE) under which it would be taken, if that is known."""

    def __init__(self, cause: Cause, detail: str, *, retry_after: float | None = None, remedy: str = "") -> None:
        super().__init__(f"{cause.value}: {detail}")
        self.cause = cause
        self.detail = detail
        self.retry_after = retry_after
        self.remedy = remedy

    def may_pass(self, max_wait_seconds: float) -> bool:
        """Whether a retry may succeed."""
        transient = self.cause in OUTAGES or self.cause is Cause.BAD_REPLY
        return transient and (self.retry_after or 0.0) <= max_wait_seconds


class RemoteDown(EngineUnusable):
    """Too many requests are lost for the job to continue, or the endpoint denies access or refuses a parameter."""


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
    if isinstance(error, ErrorReply) and _TOO_LONG.search(" ".join(_words(error.error))):
        return RemoteFailure(Cause.TOO_LONG, str(error))
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
        return _of_status(error.status_code, error.body, error.response.headers)
    raise error


def _of_status(status: int, body: Any, headers: Mapping[str, str]) -> RemoteFailure:
    message = body.get("message") if isinstance(body, Mapping) else None
    detail = f"status {status}: {str(message or body or 'without a message')[:MAX_DETAIL]}"
    words = " ".join(_words(body))
    refused = _PARAMETER.search(_parameter(body) or words) if _REFUSED.search(words) else None
    if status in (401, 403, 404):
        cause = Cause.NO_ACCESS
    elif status == 402 or any(code in words for code in _QUOTA_CODES):
        cause = Cause.QUOTA
    elif status == 429:
        cause = Cause.RATE_LIMIT
    elif (status == 413 and not _RATE.search(words)) or _TOO_LONG.search(words):
        cause = Cause.TOO_LONG
    elif status in (400, 422) and refused:
        return RemoteFailure(Cause.PARAMETER, detail, remedy=_REMEDIES[refused[1]])
    elif status >= 500 or status in (408, 409, 425):
        cause = Cause.SERVER_ERROR
    else:
        cause = Cause.REJECTED
    return RemoteFailure(cause, detail, retry_after=retry_after(headers))


def _words(body: Any) -> Iterator[str]:
    """What an error's body says: a text, or the texts under `_WORDS` of its objects."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, list):
        for item in body:
            yield from _words(item)
    elif isinstance(body, Mapping):
        for name in _WORDS:
            yield from _words(body.get(name))


def _parameter(body: Any) -> str:
    """The parameter that an error names as its own."""
    name = body.get("param") if isinstance(body, Mapping) else None
    return name if isinstance(name, str) else ""


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
