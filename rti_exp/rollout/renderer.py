"""What a renderer is, and which one a model's tokenizer needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.settings import SettingsError
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.chat_template import UnsupportedTemplate
from rti_exp.rollout.token_renderer import TokenRenderer
from rti_exp.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Renderer(Protocol):
    """Turns messages into ids to append to a conversation, and sampled ids into messages.

    Rendering is token-in token-out: sampled ids are trained as they are, never decoded and encoded again. Text from
    tools, users and models is data: control tokens spelled out in it stay plain text.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a new conversation, up to and including the header of the first assistant turn."""
        ...

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Ids that follow an assistant turn: these messages, and the header of the next assistant turn.

        If the turn was cut off (`closed` is False), its end comes first.
        """
        ...

    def action_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a complete assistant turn with this text, including the id that ends it."""
        ...

    def message(self, action_ids: Sequence[int]) -> Message:
        """The assistant message that these ids spell; an unreadable tool call is kept as `malformed`."""
        ...


def renderer_for(
    tokenizer: PreTrainedTokenizerFast, settings: ChatSettings, *, setting: str
) -> TokenRenderer | ChatRenderer:
    """A renderer by the tokenizer's chat template; without one, in the format of the embedded policies.

    Args:
        setting: How the config names the tokenizer ("policy.path='...'"), for the error message.

    Raises:
        SettingsError: the tokenizer supports neither.
    """
    try:
        return ChatRenderer(tokenizer, settings) if tokenizer.chat_template else TokenRenderer(tokenizer)
    except UnsupportedTemplate as error:
        raise SettingsError(f"{setting}: {error}") from error
    except ValueError as error:
        raise SettingsError(
            f"{setting}: must have a chat template, or the embedded policies' format: {error}"
        ) from error
