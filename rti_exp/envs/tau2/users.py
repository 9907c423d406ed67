"""The users that the agent talks to. A user's next message is a function of what the user has seen and done so far.

So a forked episode meets the same user: a model's answers are remembered.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rti_exp.envs.base import InfrastructureError
from rti_exp.types import Message, ToolCall

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""The benchmark's marks in a user's message that end the conversation."""
REMEMBERED = 100_000
"""Answers of a model that are kept for forks."""
ENOUGH = 8
"""Replies without progress, after which a scripted user ends the conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The user's knowledge: the benchmark's instructions, whole and in parts (`reason` holds all if there are none)."""

    whole: str
    reason: str
    known: str = ""
    instructions: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A user's next move: text to the agent, or calls of the user's tools (then `text` is not delivered)."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    opaque: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """As of the model's message."""

    @property
    def ends(self) -> bool:
        return not self.calls and any(mark in self.text for mark in (STOP, TRANSFER, OUT_OF_SCOPE))


class User(Protocol):
    def say(self, seen: Sequence[Message]) -> Said:
        """The next move after `seen`: the agent's texts are "assistant", the user's texts and calls "user",
        results of the user's tools "tool".

        Raises:
            InfrastructureError: the user, not the agent, failed.
        """
        ...


class ChatModel(Protocol):
    """The part of `rti_exp.engines.remote.ChatModel` that a model user needs."""

    def reply(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] = ..., temperature: float = ...
    ) -> Any:
        """An object with the answer as `message`."""
        ...


@dataclass(slots=True, kw_only=True)
class ModelUser:
    """A model under the benchmark's instructions for users, with the user's tools.

    Args:
        prompt: The benchmark's system message for this scenario.
        tools: The user's, as JSON-schema functions.
        memory: Shared by all users of a run, so that a replay meets the same answers.
    """

    model: ChatModel
    prompt: str
    tools: Sequence[Mapping[str, Any]]
    temperature: float
    memory: Memory

    def say(self, seen: Sequence[Message]) -> Said:
        conversation = [Message(role="system", content=self.prompt)]
        for message in map(_flipped, seen):
            said = self.memory.get(_key(conversation)) if message.role == "assistant" else None
            if said is not None and said.calls == message.tool_calls:
                message = replace(message, tool_calls=said.calls, opaque=said.opaque)
            conversation.append(message)
        key = _key(conversation)
        known = self.memory.get(key)
        if known is None:
            answer = self.model.reply(conversation, tools=self.tools, temperature=self.temperature).message
            if answer.malformed is not None:
                raise InfrastructureError(f"the user model's tool call cannot be read: {answer.malformed}")
            text = "" if answer.tool_calls else answer.content
            known = Said(text=text, calls=answer.tool_calls, opaque=answer.opaque)
            if not known.calls and not known.text.strip():
                raise InfrastructureError("the user model gave an empty answer")
            self.memory.put(key, known)
        return known


def _key(conversation: Sequence[Message]) -> str:
    return hashlib.blake2b(repr(conversation).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _flipped(message: Message) -> Message:
    """The model plays the user: the user's messages become the assistant's."""
    role = {"assistant": "user", "user": "assistant"}.get(message.role, message.role)
    return Message(role=role, content=message.content, tool_calls=message.tool_calls)  # pyright: ignore[reportArgumentType]


@dataclass(slots=True)
class Memory:
    """Answers by conversation, the oldest dropped first; thread-safe."""

    size: int = REMEMBERED
    _kept: OrderedDict[str, Said] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str) -> Said | None:
        with self._lock:
            return self._kept.get(key)

    def put(self, key: str, said: Said) -> None:
        with self._lock:
            self._kept[key] = said
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)


class ScriptedUser:
    """A user without tools, who states all facts at once, agrees to every question, and ends when nothing is asked.

    Deterministic and easy: it does not disclose step by step, and it never changes its mind.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def say(self, seen: Sequence[Message]) -> Said:
        request = opening(self.scenario)
        # Not "any user's message": some tasks begin amid a conversation.
        if not any(message.role == "user" and message.content == request for message in seen):
            return Said(text=request)
        asked = last_text(seen)
        if is_transfer(asked):
            return Said(text=TRANSFER)
        if "?" not in asked or sum(message.role == "user" for message in seen) > ENOUGH:
            return Said(text=f"Thank you. {STOP}")
        return Said(text=answer(self.scenario, asked))


def opening(scenario: Scenario) -> str:
    return in_first_person(" ".join(part for part in (scenario.reason, scenario.known) if part))


def last_text(seen: Sequence[Message]) -> str:
    """The agent's last message."""
    return next((message.content for message in reversed(seen) if message.role == "assistant"), "")


_TRANSFER = re.compile(r"\b(being|been|be|am|are) transferred to a human|\btransferring you to a human", re.IGNORECASE)
_FACTS = re.compile(
    r"\b(name|phone number|number|zip|e-?mail|birth|user id|customer id|account|who|what|which|when|where|how|details|"
    r"information|verify|identify|abroad|travel|location)\b",
    re.IGNORECASE,
)
_UNWANTED = re.compile(r"do not want to ([^.;,]+)", re.IGNORECASE)
_SMALL_WORDS = frozenset(["a", "an", "and", "any", "for", "in", "my", "of", "on", "the", "to", "you", "your"])


def is_transfer(text: str) -> bool:
    return _TRANSFER.search(text) is not None


def answer(scenario: Scenario, asked: str) -> str:
    """The answer to a question: the facts if it asks for them, no if the scenario rules it out, else yes."""
    unwanted = _UNWANTED.search(scenario.instructions)
    if unwanted is not None:
        words = {word for word in re.findall(r"[a-z]+", unwanted[1].lower()) if word not in _SMALL_WORDS}
        if words and words <= set(re.findall(r"[a-z]+", asked.lower())):
            return f"No, {in_first_person(f'you do not want to {unwanted[1]}')}."
    if _FACTS.search(asked):
        return in_first_person(scenario.known or scenario.reason)
    return "Yes, please."


_PERSONS = (
    (r"\byou are\b", "I am"),
    (r"\byou were\b", "I was"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (r"\byou mobile\b", "my mobile"),  # a slip of the benchmark's
    (r"\b(to|for|with|at|of|from) you\b", r"\1 me"),
    (r"\byou\b", "I"),
)


def in_first_person(text: str) -> str:
    """Instructions in the second person, turned into the first person by simple rules."""
    for pattern, said in _PERSONS:
        text = re.sub(pattern, said, text, flags=re.IGNORECASE)
    return re.sub(r"(^|[.!?]\s+)([a-z])", lambda match: match[1] + match[2].upper(), text.strip())
