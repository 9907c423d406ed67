"""Rendering in the format of the embedded policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from rti_exp.rollout.text_encoder import TextEncoder
from rti_exp.rollout.tool_calls import JsonCalls, Places
from rti_exp.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CONTROL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


class TokenRenderer:
    """A `rti_exp.rollout.renderer.Renderer` for tokenizers with control tokens `<|bos|>`, `<|end|>` and `<|role|>`.

    A conversation is `<|bos|>`, then `<|role|>text<|end|>` for each message. An assistant turn is the header
    `<|assistant|>`, then what the policy writes, up to and including `<|end|>`. Tool schemas and the opening's system
    messages are not rendered: policies of this format learned both in pretraining.

    Args:
        tokenizer: a transformers fast tokenizer or a `tokenizers.Tokenizer`; it is copied, not changed.

    Raises:
        ValueError: the tokenizer lacks a control token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast | Tokenizer) -> None:
        self._text = TextEncoder(tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer)
        missing = [name for name in _CONTROL_TOKENS if name not in self._text.control]
        if missing:
            raise ValueError(f"the tokenizer has no token {', '.join(missing)}")
        self._control = {name: self._text.control[name] for name in _CONTROL_TOKENS}
        self.control_ids = frozenset(self._control.values())
        self._end = self._control["<|end|>"]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self._end,)

    def _messages(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += (self._control[f"<|{message.role}|>"], *self._text.encode_data(message.content), self._end)
        return ids

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        shown = [message for message in messages if message.role != "system"]
        return (self._control["<|bos|>"], *self._messages(shown), self._control["<|assistant|>"])

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        end = () if closed else (self._end,)
        return (*end, *self._messages(messages), self._control["<|assistant|>"])

    def action_ids(self, text: str) -> tuple[int, ...]:
        return (*self._text.encode_data(text), self._end)

    def text(self, ids: Sequence[int]) -> str:
        """The text that these ids spell, with the names of control tokens; invalid UTF-8 becomes U+FFFD."""
        return self._text.decode(ids)

    def message(self, action_ids: Sequence[int]) -> Message:
        body = action_ids[:-1] if action_ids and action_ids[-1] == self._end else action_ids
        content, control = self._text.spelled(body)
        places = Places(control=frozenset(place for place, name in control.items() if name in self._control))
        calls, malformed = JsonCalls().read(content, places)
        return Message(role="assistant", content=content, tool_calls=calls, malformed=malformed)
