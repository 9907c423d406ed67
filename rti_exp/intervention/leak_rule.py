"""The deterministic leak rule: what only the evidence told may not be in a correction.

It looks at identifiers (words with a digit, an underscore or an "@": `A-17`, `run_speed_test`, `amy@x.org`)
and at numbers. Names and phrases are left to the policy's own leak check. Known limit: a number that the
policy could have worked out itself counts as leaked when the evidence has it and the history has not.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.types import Message, Turn

_THOUSANDS_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"[^\W_]+(?:[-_.@]+[^\W_]+)*")
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?")
_SEPARATORS = re.compile(r"[-_.@]+")


def leaked(evidence: str, known: str, correction: str) -> frozenset[str]:
    """Identifiers and numbers of `correction` that `evidence` has and `known` (task, tools, history) has not.

    Compared without case, separators and number formats: `#W-12` is `w12`, `1,200.0` is `1200`.
    """
    return (identifiers(correction) & identifiers(evidence)) - identifiers(known)


def identifiers(text: str) -> frozenset[str]:
    """The identifiers and numbers in `text`, each in a form in which equal ones are equal."""
    plain = _THOUSANDS_COMMA.sub("", unicodedata.normalize("NFKC", text).casefold())
    return frozenset(form for word in _WORD.findall(plain) for form in _forms(word))


def _forms(word: str) -> list[str]:
    number = _NUMBER.fullmatch(word)
    if number is not None:
        whole, fraction = number[1].lstrip("0") or "0", (number[2] or "").rstrip("0")
        return [f"{whole}.{fraction}" if fraction else whole]
    forms = [piece for piece in _SEPARATORS.split(word) if _has_digit(piece) and not piece.isdecimal()]
    if _has_digit(word) or "_" in word or "@" in word:
        forms.append(_SEPARATORS.sub("", word))
    return forms


def _has_digit(text: str) -> bool:
    return any(character.isdecimal() for character in text)


def known_text(opening: Sequence[Message], tools: Sequence[Mapping[str, Any]], turns: Sequence[Turn]) -> str:
    """All that the policy had seen or written before a step: its opening, its tools, `turns`."""
    parts = [message_text(message) for message in opening]
    parts.append(json.dumps(list(tools), ensure_ascii=False))
    for turn in turns:
        parts += [message_text(message) for message in (turn.message, *turn.observations)]
    return "\n".join(parts)


def message_text(message: Message) -> str:
    """A message's text, its thinking, which is trained like the rest, and its tool calls, with escapes in their
    arguments resolved."""
    calls = [json.dumps({"name": c.name, "arguments": c.arguments}, ensure_ascii=False) for c in message.tool_calls]
    return "\n".join([*([message.thinking] if message.thinking else []), message.content, *calls])
