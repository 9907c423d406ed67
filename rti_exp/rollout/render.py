"""Token-in token-out chat rendering: what was sampled is what is trained, never decoded and re-encoded."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenizers import Tokenizer

from rti_exp.rollout.tool_calls import MalformedToolCall, parse_tool_call
from rti_exp.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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


_CONTROL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_CACHED_TEXTS = 16384


class TokenRenderer:
    """Renderer for tokenizers whose control tokens are single ids named `<|bos|>`, `<|end|>` and `<|role|>`.

    A conversation is `<|bos|>`, then `<|role|>text<|end|>` for each message; an assistant turn is the header
    `<|assistant|>`, then what the policy writes up to and including `<|end|>`. Tool schemas and the opening's
    system messages are not rendered: policies of this format learned tools and manners in pretraining.

    Args:
        tokenizer: a transformers fast tokenizer or a `tokenizers.Tokenizer`; it is copied, not changed.

    Raises:
        ValueError: the tokenizer lacks a control token, or would read one out of plain text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast | Tokenizer) -> None:
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        self._tokenizer = Tokenizer.from_str(backend.to_str())
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        found = {name: self._tokenizer.token_to_id(name) for name in _CONTROL_TOKENS}
        missing = [name for name, token_id in found.items() if token_id is None]
        if missing:
            raise ValueError(f"the tokenizer has no token {', '.join(missing)}")
        self._control: dict[str, int] = {name: token_id for name, token_id in found.items() if token_id is not None}
        self._control_ids = frozenset(self._control.values())
        self._end = self._control["<|end|>"]
        self._encode = functools.lru_cache(maxsize=_CACHED_TEXTS)(self._encode_text)
        self._encode("".join(_CONTROL_TOKENS))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self._end,)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        # A lone surrogate has no UTF-8 form; it becomes a question mark.
        plain = text.encode("utf-8", "replace").decode("utf-8")
        ids = tuple(self._tokenizer.encode(plain, add_special_tokens=False).ids)
        if not self._control_ids.isdisjoint(ids):
            raise ValueError("the tokenizer reads control tokens out of plain text: mark them as special tokens")
        return ids

    def _messages(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += (self._control[f"<|{message.role}|>"], *self._encode(message.content), self._end)
        return ids

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        shown = [message for message in messages if message.role != "system"]
        return (self._control["<|bos|>"], *self._messages(shown), self._control["<|assistant|>"])

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        end = () if closed else (self._end,)
        return (*end, *self._messages(messages), self._control["<|assistant|>"])

    def action_ids(self, text: str) -> tuple[int, ...]:
        return (*self._encode(text), self._end)

    def text(self, ids: Sequence[int]) -> str:
        """What these ids spell, control tokens by their names; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def message(self, action_ids: Sequence[int]) -> Message:
        body = action_ids[:-1] if action_ids and action_ids[-1] == self._end else action_ids
        content = self.text(body)
        if not content.lstrip().startswith("{"):
            return Message(role="assistant", content=content)
        if not self._control_ids.isdisjoint(body):
            return Message(role="assistant", content=content, malformed="The tool call holds a control token.")
        try:
            call = parse_tool_call(content)
        except MalformedToolCall as error:
            return Message(role="assistant", content=content, malformed=str(error))
        return Message(role="assistant", content=content, tool_calls=(call,))
