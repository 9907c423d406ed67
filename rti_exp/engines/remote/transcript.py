"""Conversations with a model whose tokenizer is not here, as ids that lose nothing.

Roles and rollouts speak in ids. An endpoint takes messages. Here a character is an id (its code point), and what
separates messages are ids beyond Unicode, so that no text can spell one: the messages can be read back exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.remote.messages import encodable
from rti_exp.types import Message, Role

END = 0x110000
"""The first id that is no character."""
HEADERS: dict[Role, int] = {"system": END + 1, "user": END + 2, "assistant": END + 3, "tool": END + 4}
ROLES: dict[int, Role] = {header: role for role, header in HEADERS.items()}


class Transcript:
    """A renderer (`rti_exp.rollout.render.Renderer`) for `rti_exp.engines.remote.engine.RemoteEngine`.

    Turns are text, tool calls as their author spelled them: the endpoint is shown what the policy wrote, and answers
    in kind. Tools are told in the system message, as JSON schemas.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (END,)

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        shown = list(messages)
        if tools:
            listed = "Tools:\n" + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            if shown and shown[0].role == "system":
                listed = f"{shown.pop(0).content}\n\n{listed}"
            shown.insert(0, Message(role="system", content=listed))
        return (*_ids(shown), HEADERS["assistant"])

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        return (*(() if closed else (END,)), *_ids(messages), HEADERS["assistant"])

    def action_ids(self, text: str) -> tuple[int, ...]:
        return (*_characters(text), END)

    def message(self, action_ids: Sequence[int]) -> Message:
        """The text of a turn, without the white space around it, which is the endpoint's more than the author's."""
        return Message(role="assistant", content=self.text(action_ids).strip())

    def text(self, ids: Sequence[int]) -> str:
        """The characters among the ids."""
        return "".join(map(chr, (i for i in ids if i < END)))


def _characters(text: str) -> tuple[int, ...]:
    return tuple(map(ord, encodable(text)))


def _ids(messages: Sequence[Message]) -> tuple[int, ...]:
    return tuple(i for one in messages for i in (HEADERS[one.role], *_characters(one.content), END))


def messages_of(prompt_ids: Sequence[int]) -> list[Message]:
    """The messages that a prompt is made of, as chat endpoints take them.

    Only an opening system message stays one: later ones, which many chat templates refuse, are said by the user, as
    are tool results, since calls are text here. What one role says in a row becomes one message.

    Raises:
        ValueError: not a prompt: it does not end with the header of an assistant turn.
    """
    if not prompt_ids or prompt_ids[-1] != HEADERS["assistant"]:
        raise ValueError("a prompt ends with the header of an assistant turn")
    read: list[Message] = []
    start = 0
    for place, token_id in enumerate(prompt_ids):
        if token_id == END:
            _add(read, ROLES[prompt_ids[start]], "".join(map(chr, prompt_ids[start + 1 : place])))
            start = place + 1
    return read


def _add(read: list[Message], role: Role, content: str) -> None:
    if role == "tool":
        role, content = "user", f"[tool result]\n{content}"
    elif role == "system" and read and any(message.role != "system" for message in read):
        role = "user"
    if read and read[-1].role == role:
        content = f"{read.pop().content}\n\n{content}"
    read.append(Message(role=role, content=content))
