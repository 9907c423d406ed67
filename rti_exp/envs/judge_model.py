"""A judge model that answers with one JSON object. A missing verdict is an infrastructure failure, never a 0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from rti_exp.engines.base import EngineUnusable
from rti_exp.engines.model_text import verdict_text
from rti_exp.envs.base import InfrastructureError
from rti_exp.types import Message

T = TypeVar("T")


class JudgeModel(Protocol):
    """The interface of a judge; `rti_exp.engines.remote.ChatModel` implements it."""

    def reply(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int | None) -> Any:
        """A reply with its text in `message.content`."""
        ...


class Referee(Generic[T]):
    """Asks `model` for a verdict. If the answer cannot be parsed, retries with another seed, up to `retries` times.

    Verdicts are cached by text, so that the evidence for the roles agrees with the reward.

    Args:
        instructions: the system message.
        read: parses the verdict from an answer's text; None if there is no verdict.
        verdict_name: the verdict's name in error messages.
    """

    def __init__(
        self,
        model: JudgeModel,
        *,
        instructions: str,
        read: Callable[[str], T | None],
        verdict_name: str,
        retries: int,
        max_tokens: int,
    ) -> None:
        self._model = model
        self._instructions = instructions
        self._read = read
        self._verdict_name = verdict_name
        self._retries = retries
        self._max_tokens = max_tokens
        self._verdicts: dict[str, T] = {}

    def __call__(self, text: str) -> T:
        """
        Raises:
            InfrastructureError: the model cannot be reached, or gives no verdict.
            EngineUnusable: its endpoint refuses our requests (key, model name, address); the job must stop.
        """
        key = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if key not in self._verdicts:
            self._verdicts[key] = self._ask(text)
        return self._verdicts[key]

    def _ask(self, text: str) -> T:
        messages = [Message(role="system", content=self._instructions), Message(role="user", content=text)]
        answer = ""
        for attempt in range(self._retries + 1):
            try:
                reply = self._model.reply(
                    messages, temperature=0.0 if attempt == 0 else 1.0, max_tokens=self._max_tokens, seed=attempt
                )
            except EngineUnusable:
                raise
            except Exception as error:  # any client error: without a verdict there is no reward
                raise InfrastructureError(f"the judge failed: {type(error).__name__}: {error}") from error
            answer = reply.message.content
            verdict = self._read(answer)
            if verdict is not None:
                return verdict
        raise InfrastructureError(f"the judge gave no {self._verdict_name}: {answer[:200]!r}")


def json_object(text: str) -> dict[str, Any] | None:
    """The answer's JSON object, or None. Thinking before it and a code fence around it are removed."""
    try:
        answer = json.loads(verdict_text(text), strict=False)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
