"""Token-in token-out chat rendering: what was sampled is what is trained, never decoded and re-encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rti_exp.types import Message


class Renderer(Protocol):
    """Turns messages into ids that are appended to a conversation, and sampled ids into messages.

    Text from tools, users and models is data: control tokens spelled out in it stay plain text.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a new conversation up to and including the header of the first assistant turn."""
        ...

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Ids that follow an assistant turn: its end (if the turn was cut off, `closed` False), these
        messages, and the header of the next assistant turn."""
        ...

    def action_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a whole assistant turn with this text, the ending id included."""
        ...

    def message(self, action_ids: Sequence[int]) -> Message:
        """The assistant message that these ids spell; an unreadable tool call is kept as `malformed`."""
        ...
