"""Conversations with a model whose tokenizer we do not have, as ids that lose nothing.

Roles and rollouts work with ids; an endpoint takes messages. Here each character is an id (its code point), and
messages are separated by ids beyond Unicode, which no text can contain. So messages can be read back exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.engines.remote.messages import encodable
from rti_exp.types import Message, Role

END = 0x110000
"""The first id that is not a character."""
HEADERS: dict[Role, int] = {"system": END + 1, "user": END + 2, "assistant": END + 3, "tool": END + 4}
ROLES: dict[int, Role] = {header: role for role, header in HEADERS.items()}


class Transcript:
    """A renderer (`rti_exp.rollout.renderer.Renderer`) for `rti_exp.engines.remote.engine.RemoteEngine`.

    Turns are text, with tool calls as their author wrote them. The tools are listed in the system message, as JSON
    schemas.
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
        """The text of a turn, stripped: surrounding white space is the endpoint's rather than the author's."""
        return Message(role="assistant", content=self.text(action_ids).strip())

    def text(self, ids: Sequence[int]) -> str:
        """The characters among the ids."""
        return "".join(chr(token_id) for token_id in ids if token_id < END)


def _characters(text: str) -> tuple[int, ...]:
    return tuple(map(ord, encodable(text)))


def _ids(messages: Sequence[Message]) -> tuple[int, ...]:
    ids: list[int] = []
    for message in messages:
        ids += (HEADERS[message.role], *_characters(message.content), END)
    return tuple(ids)


def messages_of(prompt_ids: Sequence[int]) -> list[Message]:
    """The messages that a prompt was rendered from, in the form that chat endpoints accept.

    Only an opening system message stays a system message; many chat templates refuse later ones, so those become user
    messages. Tool results become user messages too, because calls are text here. Consecutive messages of one role are
    joined.

    Raises:
        ValueError: the ids do not end with the header of an assistant turn.
    """
    if not prompt_ids or prompt_ids[-1] != HEADERS["assistant"]:
        raise ValueError("a prompt must end with the header of an assistant turn")
    messages: list[Message] = []
    start = 0
    for place, token_id in enumerate(prompt_ids):
        if token_id == END:
            _add(messages, ROLES[prompt_ids[start]], "".join(map(chr, prompt_ids[start + 1 : place])))
            start = place + 1
    return messages


def _add(messages: list[Message], role: Role, content: str) -> None:
    if role == "tool":
        role, content = "user", f"[tool result]\n{content}"
    elif role == "system" and any(message.role != "system" for message in messages):
        role = "user"
    if messages and messages[-1].role == role:
        content = f"{messages.pop().content}\n\n{content}"
    messages.append(Message(role=role, content=content))
