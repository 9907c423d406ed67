"""A judge model, asked for one JSON object. What it fails to give is the infrastructure's failure, never a 0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from rti_exp.engines.base import EngineUnusable
from rti_exp.envs.base import InfrastructureError
from rti_exp.types import Message

T = TypeVar("T")


class JudgeModel(Protocol):
    """What is needed of a model: `rti_exp.engines.remote.ChatModel` has it."""

    def reply(self, messages: Sequence[Message], *, temperature: float, max_tokens: int, seed: int | None) -> Any:
        """An answer whose `message.content` is its text."""
        ...


class Referee(Generic[T]):
    """Asks `model`, and again with another seed for an answer that cannot be read, `retries` times.

    What it said of a text it is not asked again: the evidence for the roles then agrees with the reward.

    Args:
        instructions: the system message.
        read: the verdict of an answer's text; None if it has none.
        wanted: what a verdict is called in an error.
    """

    def __init__(
        self,
        model: JudgeModel,
        *,
        instructions: str,
        read: Callable[[str], T | None],
        wanted: str,
        retries: int,
        max_tokens: int,
    ) -> None:
        self._model = model
        self._instructions = instructions
        self._read = read
        self._wanted = wanted
        self._retries = retries
        self._max_tokens = max_tokens
        self._verdicts: dict[str, T] = {}

    def __call__(self, text: str) -> T:
        """
        Raises:
            InfrastructureError: the model cannot be reached, or gave no verdict.
            EngineUnusable: its endpoint refuses us (key, name, address); the job must end.
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
            except Exception as error:  # whatever a client raises: without a verdict there is no reward
                raise InfrastructureError(f"the judge failed: {type(error).__name__}: {error}") from error
            answer = reply.message.content
            verdict = self._read(answer)
            if verdict is not None:
                return verdict
        raise InfrastructureError(f"the judge gave no {self._wanted}: {answer[:200]!r}")


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that an answer is; thinking before it and a code fence around it are fine. None for others."""
    body = text.rpartition("</think>")[2].strip()
    if body.startswith("```") and body.endswith("```"):
        body = body[3:-3].removeprefix("json").strip()
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
