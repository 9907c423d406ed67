"""A model behind any OpenAI-compatible endpoint: messages in, one answer out."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.remote.background import run
from rti_exp.engines.remote.cache import ReplyCache
from rti_exp.engines.remote.failures import Cause, RemoteDown, RemoteFailure, classified
from rti_exp.engines.remote.ledger import Ledger, Usage
from rti_exp.engines.remote.messages import BadReply, FilteredReply, ReadReply, read_reply, to_chat, to_tools
from rti_exp.engines.remote.pace import Pace
from rti_exp.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]
    from tenacity import RetryCallState  # pyright: ignore[reportMissingImports]

INSTALL = "pip install 'rti-exp[remote]'"
SEEDS = 2**31
"""Seeds that every endpoint takes are below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. Token counts are None where the endpoint gave none; `cost` is what it cost when it was made."""

    message: Message
    stop_reason: Literal["stop", "length"]
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    from_cache: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What is asked. `seed` tells two draws of one conversation apart, also where the endpoint is sent none."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int | None = None


class ChatModel:
    """Asks the endpoint of `settings`, from any number of threads.

    A request is tried again, with growing waits, where that may help (connection, time-out, status 408, 409, 425,
    429 and 5xx, a broken answer), for at most `attempts` tries and `patience_seconds`. An endpoint that refuses us
    (key, model, address) before it ever answered ends the job.

    Args:
        key: The config key of `settings`, for messages.

    Raises:
        SettingsError: the client is not installed, or the environment variable of the API key is not set.
    """

    def __init__(self, settings: RemoteSettings, *, key: str = "remote") -> None:
        self.settings = settings
        self.key = key
        self._secret = _secret(settings, key)
        _require_client(key)
        self._cache = None if settings.cache is None else ReplyCache(Path(settings.cache).expanduser())
        self._ledger = Ledger(
            max_failure_rate=settings.max_failure_rate,
            window=settings.failure_window,
            priced=settings.cost(0, 0) is not None,
        )
        self._connection: tuple[int, AsyncOpenAI, Pace] | None = None
        # Not the global generator: waiting must not move a run's draws.
        self._jitter = random.Random()

    @property
    def usage(self) -> Usage:
        return self._ledger.usage

    @property
    def lost(self) -> dict[str, int]:
        """Lost requests by cause (`Cause`)."""
        return {cause.value: count for cause, count in self._ledger.lost.items()}

    def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 1024,
        seed: int | None = None,
    ) -> Reply:
        """The model's answer to a conversation.

        Args:
            tools: JSON-schema functions ({"name", "description", "parameters"}) that it may call.
        Raises:
            RemoteFailure: the request is lost (an `EngineUnavailable`).
            RemoteDown: more is lost than `max_failure_rate` allows, or the endpoint refuses us; ends the job.
        """
        request = ChatRequest(
            messages=messages, tools=tools, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed
        )
        (answer,) = self.replies([request])
        if isinstance(answer, RemoteFailure):
            raise answer
        return answer

    def replies(self, requests: Sequence[ChatRequest]) -> list[Reply | RemoteFailure]:
        """The answers in the order of `requests`, asked at once as far as `concurrency` allows; a failure in the
        place of a request that is lost.

        Raises:
            RemoteDown: as `reply`.
        """
        return run(self._all(requests))

    async def _all(self, requests: Sequence[ChatRequest]) -> list[Reply | RemoteFailure]:
        tasks = [asyncio.ensure_future(self._one(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:  # after RemoteDown or an interrupt the others are not waited for
            for task in tasks:
                task.cancel()

    async def _one(self, request: ChatRequest) -> Reply | RemoteFailure:
        body = self._body(request)
        # The seed tells draws apart also where it is not sent.
        named = {"base_url": self.settings.base_url, "body": body, "seed": request.seed}
        stored = None if self._cache is None else self._cache.get(named)
        if stored is not None:
            return self._counted(stored, from_cache=True)
        try:
            text, read = await self._asked(body)
        except RemoteFailure as failure:
            self._refuse_setup(failure)
            self._ledger.count_loss(failure, self._name())
            return failure
        if self._cache is not None:
            self._cache.put(named, text)
        return self._counted(read, from_cache=False)

    def _counted(self, read: ReadReply, *, from_cache: bool) -> Reply:
        cost = self.settings.cost(read.prompt_tokens or 0, read.completion_tokens or 0, read.cached_prompt_tokens)
        self._ledger.count_answer(read.prompt_tokens, read.completion_tokens, cost=cost, cached=from_cache)
        return Reply(
            message=read.message,
            stop_reason=read.stop_reason,
            model=read.model,
            prompt_tokens=read.prompt_tokens,
            completion_tokens=read.completion_tokens,
            cost=cost,
            from_cache=from_cache,
        )

    def _refuse_setup(self, failure: RemoteFailure) -> None:
        """A wrong key or name is told at once, not after a run in which everything was lost."""
        if failure.cause is Cause.NO_ACCESS and not self._ledger.answered:
            named = "no key is sent" if self.settings.api_key is None else f"the key is in {self.settings.api_key}"
            raise RemoteDown(
                f"{self._name()} refuses us ({failure.detail}); check {self.key}.base_url, {self.key}.model and "
                f"{self.key}.api_key ({named})"
            )

    def _name(self) -> str:
        return f"{self.settings.model} at {self.settings.base_url}"

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {"model": settings.model, "messages": to_chat(request.messages)}
        if request.tools:
            body["tools"] = to_tools(request.tools)
        if settings.send_temperature:
            body |= {"temperature": request.temperature, "top_p": request.top_p}
        body[settings.max_tokens_key] = request.max_tokens
        if request.seed is not None and settings.send_seed:
            body["seed"] = request.seed % SEEDS
        return body | settings.extra

    async def _asked(self, body: Mapping[str, Any]) -> tuple[str, ReadReply]:
        """The answer as text and as it was read.

        Raises:
            RemoteFailure: lost, after all tries.
        """
        if self._ledger.cost >= self.settings.max_cost:
            raise RemoteFailure(Cause.QUOTA, f"not asked, since max_cost={self.settings.max_cost} is spent")
        _, _, pace = self._connected()
        async with pace.slot() as only_try:
            try:
                answer = await self._tried(body, attempts=1 if only_try else self.settings.attempts)
            except RemoteFailure as failure:
                pace.ended(failure)
                raise
            pace.ended(None)
            return answer

    async def _tried(self, body: Mapping[str, Any], *, attempts: int) -> tuple[str, ReadReply]:
        import tenacity  # pyright: ignore[reportMissingImports]

        settings, pace = self.settings, self._connected()[2]
        await pace.start()  # a place in the queue is no sign of a server that is down: patience begins after it
        ends = time.monotonic() + settings.patience_seconds
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, RemoteFailure) and error.retried),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(attempts), tenacity.stop_before_delay(settings.patience_seconds)
            ),
            wait=self._wait,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    await pace.start()
                return await self._try(body, ends)
        raise AssertionError("the last try raises")

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else a random part of a bound that doubles."""
        settings = self.settings
        failure = state.outcome.exception() if state.outcome is not None else None
        if isinstance(failure, RemoteFailure) and failure.retry_after is not None:
            # Longer than we would ever wait: the patience ends it.
            wait = (
                failure.retry_after if failure.retry_after <= settings.max_wait_seconds else settings.patience_seconds
            )
            if failure.retry_after <= settings.max_wait_seconds:
                self._connected()[2].pause(wait)
            return wait
        bound = min(settings.first_wait_seconds * 2 ** (state.attempt_number - 1), settings.max_wait_seconds)
        return bound * self._jitter.uniform(0.5, 1.0)

    async def _try(self, body: Mapping[str, Any], ends: float) -> tuple[str, ReadReply]:
        import openai  # pyright: ignore[reportMissingImports]

        client = self._connected()[1]
        self._ledger.tries += 1
        seconds = min(self.settings.total_seconds, max(ends - time.monotonic(), 0.001))
        try:
            async with asyncio.timeout(seconds):
                raw = await client.chat.completions.with_raw_response.create(
                    **_arguments(body), extra_headers=None if self._secret else {"Authorization": openai.omit}
                )
                text = self._scrubbed(raw.text)
            read = read_reply(text)
        except FilteredReply as error:
            raise RemoteFailure(Cause.REJECTED, str(error)) from None
        except BadReply as error:
            raise RemoteFailure(Cause.BAD_REPLY, self._scrubbed(str(error))) from None
        except Exception as error:  # the client's own errors, told apart here; others go on
            failure = classified(error, seconds)
            raise RemoteFailure(
                failure.cause, self._scrubbed(failure.detail), retry_after=failure.retry_after
            ) from None
        if not self.settings.accepts(read.model):
            raise RemoteFailure(
                Cause.WRONG_MODEL,
                f"{read.model[:100]!r} answered in the place of {self.settings.model!r}; if that is right, set "
                f"{self.key}.answers_as",
            )
        return text, read

    def _scrubbed(self, text: str) -> str:
        """Without the API key, should the server have repeated it."""
        return text if self._secret is None else text.replace(self._secret, "[secret]")

    def _connected(self) -> tuple[int, AsyncOpenAI, Pace]:
        """The client of this process and its pace; made in the event loop that they live in."""
        if self._connection is None or self._connection[0] != os.getpid():
            settings = self.settings
            pace = Pace(
                concurrency=settings.concurrency,
                requests_per_minute=settings.requests_per_minute,
                rest_seconds=settings.max_wait_seconds,
            )
            self._connection = (os.getpid(), _client(settings, self._secret), pace)
        return self._connection


def _client(settings: RemoteSettings, secret: str | None) -> AsyncOpenAI:
    import openai  # pyright: ignore[reportMissingImports]

    timeout = openai.Timeout(
        settings.read_seconds, connect=settings.connect_seconds, read=settings.read_seconds, pool=None
    )
    # Never None: the client would take OPENAI_API_KEY, and send it to whatever base_url says.
    return openai.AsyncOpenAI(api_key=secret or "none", base_url=settings.base_url, timeout=timeout, max_retries=0)


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body as the client's arguments; what is not the API's goes into `extra_body`."""
    known = ("model", "messages", "tools", "temperature", "top_p", "max_tokens", "max_completion_tokens", "seed")
    return {
        **{name: value for name, value in body.items() if name in known},
        "extra_body": {name: value for name, value in body.items() if name not in known},
    }


def _secret(settings: RemoteSettings, key: str) -> str | None:
    """The API key's value. It stays in memory: no error and no answer that we write down holds it."""
    if settings.api_key is None:
        return None
    value = os.environ.get(settings.api_key, "").strip()
    if not value:
        raise SettingsError(f"{key}.api_key={settings.api_key!r}: the environment variable of this name is not set")
    return value


def _require_client(key: str) -> None:
    try:
        import openai  # noqa: F401  # pyright: ignore[reportMissingImports]
        import tenacity  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingsError(f"{key}: needs the client of remote models ({error.name}): {INSTALL}") from error
