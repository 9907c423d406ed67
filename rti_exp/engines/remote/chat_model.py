"""A model behind any OpenAI-compatible endpoint: messages in, one answer out."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.remote.client import create_client, proxy_variable
from rti_exp.engines.remote.failures import Cause, RemoteDown, RemoteFailure, classify
from rti_exp.engines.remote.messages import Reply, read_reply, to_chat, to_tools
from rti_exp.engines.remote.reply_cache import ReplyCache
from rti_exp.engines.remote.throttle import Throttle
from rti_exp.engines.remote.usage import Usage
from rti_exp.processes.background_loop import run
from rti_exp.runs.redaction import REDACTED, redacted
from rti_exp.types import Message

if TYPE_CHECKING:
    from tenacity import RetryCallState  # pyright: ignore[reportMissingImports]

MAX_SEED = 2**31
"""Every endpoint accepts seeds below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question. `seed` distinguishes two draws from the same conversation, even if the endpoint takes no seed."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int | None = None


class ChatModel:
    """Asks the endpoint of `settings`. May be called from any number of threads.

    A request is retried with exponential back-off where a retry may help (connection errors, time-outs, status 408,
    409, 425, 429 and 5xx, malformed answers), for at most `attempts` tries and `patience_seconds`. An endpoint that
    denies access (wrong key, model or address) or refuses a parameter before it ever answered ends the job.

    Args:
        key: The config key of `settings`, for error messages.

    Raises:
        SettingsError: the client is not installed, the environment variable of the API key is not set, or the
            environment's proxy cannot be used.
    """

    def __init__(self, settings: RemoteSettings, *, key: str = "remote") -> None:
        self.settings = settings
        self.key = key
        self.usage = Usage()
        self._secret = _secret(settings, key)
        self._client = create_client(settings, self._secret, key)
        self._proxy = proxy_variable(settings.base_url)
        self._throttle = Throttle(
            concurrency=settings.concurrency,
            requests_per_minute=settings.requests_per_minute,
            rest_seconds=settings.max_wait_seconds,
        )
        self._cache = None if settings.cache is None else ReplyCache(Path(settings.cache).expanduser())
        self._recently_lost: deque[bool] = deque(maxlen=settings.failure_window)
        # A private generator: back-off must not change the draws of code that uses the global one.
        self._jitter = random.Random()

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
            tools: JSON-schema functions ({"name", "description", "parameters"}) that the model may call.

        Raises:
            RemoteFailure: the request is lost (an `EngineUnavailable`).
            RemoteDown: more requests are lost than `max_failure_rate` allows, or the endpoint denies access. The job
                must end.
        """
        request = ChatRequest(
            messages=messages, tools=tools, temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed
        )
        (answer,) = self.replies([request])
        if isinstance(answer, RemoteFailure):
            raise answer
        return answer

    def replies(self, requests: Sequence[ChatRequest]) -> list[Reply | RemoteFailure]:
        """Answers in the order of `requests`, asked concurrently; a failure in place of each lost request.

        Raises:
            RemoteDown: see `reply`.
        """
        return run(self._answer_all(requests))

    async def _answer_all(self, requests: Sequence[ChatRequest]) -> list[Reply | RemoteFailure]:
        tasks = [asyncio.ensure_future(self._answer(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:  # after RemoteDown or an interrupt, the remaining requests are abandoned
            for task in tasks:
                task.cancel()

    async def _answer(self, request: ChatRequest) -> Reply | RemoteFailure:
        body = self._body(request)
        # The seed is part of the cache key even if the endpoint is sent none.
        cache_key = {"base_url": self.settings.base_url, "body": body, "seed": request.seed}
        reply = None if self._cache is None else self._cache.get(cache_key)
        if reply is None:
            try:
                text, reply = await self._ask(body)
            except RemoteFailure as failure:
                self._count_lost(failure)
                return failure
            self._recently_lost.append(False)
            if self._cache is not None:
                self._cache.put(cache_key, text)
        self._count_answered(reply)
        return reply

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        settings = self.settings
        body: dict[str, Any] = {"model": settings.model, "messages": to_chat(request.messages)}
        if request.tools:
            body["tools"] = to_tools(request.tools)
        if settings.send_temperature:
            body |= {"temperature": request.temperature, "top_p": request.top_p}
        body[settings.max_tokens_key] = request.max_tokens
        if request.seed is not None and settings.send_seed:
            body["seed"] = request.seed % MAX_SEED
        return body | settings.extra

    async def _ask(self, body: Mapping[str, Any]) -> tuple[str, Reply]:
        """The answer's text, and what was read from it.

        Raises:
            RemoteFailure: the request is lost, after all its tries.
        """
        import tenacity  # pyright: ignore[reportMissingImports]

        settings, throttle = self.settings, self._throttle
        async with throttle.slots:
            attempts = throttle.attempts(settings.attempts)
            await throttle.next_turn()  # patience begins after the queue, which says nothing about the server
            retrying = tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception(
                    lambda error: isinstance(error, RemoteFailure) and error.may_pass(settings.max_wait_seconds)
                ),
                stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(settings.patience_seconds),
                wait=self._wait,
                sleep=throttle.next_turn,
                reraise=True,
            )
            try:
                answer = await retrying(self._try, body, time.monotonic() + settings.patience_seconds)
            except RemoteFailure as failure:
                throttle.record(failure)
                raise
            throttle.record(None)
            return answer

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next try: what the server asks for, else exponential back-off with jitter."""
        failure = state.outcome.exception() if state.outcome is not None else None
        if isinstance(failure, RemoteFailure) and failure.retry_after is not None:
            self._throttle.pause(failure.retry_after)
            return failure.retry_after
        bound = min(self.settings.first_wait_seconds * 2 ** (state.attempt_number - 1), self.settings.max_wait_seconds)
        return bound * self._jitter.uniform(0.5, 1.0)

    async def _try(self, body: Mapping[str, Any], deadline: float) -> tuple[str, Reply]:
        import httpx
        import openai  # pyright: ignore[reportMissingImports]

        self.usage.tries += 1
        seconds = min(self.settings.total_seconds, max(deadline - time.monotonic(), 0.001))
        headers = {} if self._secret else {"Authorization": openai.omit}
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.post(
                    "/chat/completions", body=dict(body), cast_to=httpx.Response, options={"headers": headers}
                )
            text = self._without_secret(response.text)
            reply = read_reply(text)
        except Exception as error:  # `classify` raises errors again that are not an endpoint's
            failure = classify(error, seconds)
            detail = self._without_secret(failure.detail)
            if failure.cause is Cause.CONNECTION and self._proxy is not None:
                detail += f" (through the proxy in the environment variable {self._proxy})"
            if failure.remedy:
                detail += f"; set {self.key}.{failure.remedy}"
            raise RemoteFailure(failure.cause, detail, retry_after=failure.retry_after) from None
        if reply.model and not self.settings.accepts(reply.model):  # some servers name no model, which is no other one
            raise RemoteFailure(
                Cause.WRONG_MODEL,
                f"{reply.model[:100]!r} answered instead of {self.settings.model!r}; if that is right, set "
                f"{self.key}.answers_as",
            )
        return text, reply

    def _without_secret(self, text: str) -> str:
        return redacted(text if self._secret is None else text.replace(self._secret, REDACTED))

    def _count_answered(self, reply: Reply) -> None:
        usage = self.usage
        usage.answered += 1
        usage.from_cache += reply.from_cache
        usage.prompt_tokens += reply.prompt_tokens or 0
        usage.completion_tokens += reply.completion_tokens or 0
        usage.without_counts += reply.prompt_tokens is None or reply.completion_tokens is None

    def _count_lost(self, failure: RemoteFailure) -> None:
        """
        Raises:
            RemoteDown: the endpoint denies access or a parameter, or too many of the last requests are lost.
        """
        settings, lost, window = self.settings, self._recently_lost, self.settings.failure_window
        name = f"{settings.model} at {settings.base_url}"
        if failure.cause is Cause.NO_ACCESS and not self.usage.answered:
            api_key = "no key is sent" if settings.api_key is None else f"the key is in {settings.api_key}"
            raise RemoteDown(
                f"{name} denies access ({failure.detail}); check {self.key}.base_url, {self.key}.model and "
                f"{self.key}.api_key ({api_key})"
            )
        if failure.cause is Cause.PARAMETER and not self.usage.answered:
            raise RemoteDown(f"{name} refuses every request ({failure.detail})")
        self.usage.lost_by_cause[failure.cause] += 1
        lost.append(True)
        if len(lost) == window and sum(lost) / window > settings.max_failure_rate:
            causes = ", ".join(f"{count} {cause.value}" for cause, count in self.usage.lost_by_cause.most_common())
            raise RemoteDown(
                f"{name}: {sum(lost)} of the last {window} requests are lost, more than "
                f"max_failure_rate={settings.max_failure_rate} allows (in total: {causes}); the last: {failure}"
            )


def _secret(settings: RemoteSettings, key: str) -> str | None:
    """The API key's value. It stays in memory: it is removed from every error and answer that we keep."""
    if settings.api_key is None:
        return None
    value = os.environ.get(settings.api_key, "").strip()
    if not value:
        raise SettingsError(f"{key}.api_key={settings.api_key!r}: the environment variable of this name is not set")
    return value
