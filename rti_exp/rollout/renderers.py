"""Which renderer a model's tokenizer needs."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.settings import SettingsError
from rti_exp.rollout.chat_render import ChatRenderer
from rti_exp.rollout.chat_template import UnsupportedTemplate
from rti_exp.rollout.render import TokenRenderer


def renderer_for(
    tokenizer: PreTrainedTokenizerFast, settings: ChatSettings, *, given: str
) -> TokenRenderer | ChatRenderer:
    """By the tokenizer's chat template; without one, in the format of the embedded policies.

    Raises:
        SettingsError: neither is possible; the message begins with `given` ("policy.path='...'").
    """
    try:
        return ChatRenderer(tokenizer, settings) if tokenizer.chat_template else TokenRenderer(tokenizer)
    except UnsupportedTemplate as error:
        raise SettingsError(f"{given}: {error}") from error
    except ValueError as error:
        raise SettingsError(f"{given}: must have a chat template, or the embedded policies' format: {error}") from error
