"""Settings of how conversations are rendered for a model with a chat template of its own."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated

from pydantic import AfterValidator

from rti_exp.config.fields import OutOfKeyAt, settings_class


class ToolFormat(enum.StrEnum):
    """How a tool call is spelled.

    `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, text around them.
    `json`: the whole turn is one JSON object. `auto`: hermes where the chat template renders tools in that format.
    """

    auto = "auto"
    hermes = "hermes"
    json = "json"


class ToolSchemas(enum.StrEnum):
    """How tools are shown in the opening: as JSON schemas, one line each, or not at all (learned in training)."""

    full = "full"
    short = "short"
    none = "none"


class History(enum.StrEnum):
    """What a later turn's prompt is.

    `append`: the ids so far, as they were sampled, and what came since. `template`: what the chat template renders
    of the whole conversation; where that does not extend the ids so far, a new training segment begins. `auto`:
    append, unless the template, tried out, does not extend (thinking that it drops does not count: it is kept).
    """

    auto = "auto"
    append = "append"
    template = "template"


def _iso_date(text: str) -> str:
    try:
        datetime.date.fromisoformat(text)
    except ValueError as error:
        raise ValueError("a date, as in 2024-07-26") from error
    return text


@settings_class
class ChatSettings:
    tool_format: ToolFormat
    tool_schemas: ToolSchemas
    thinking: bool | None
    """Given to the template as `enable_thinking`; null gives it nothing."""
    history: History
    system: bool
    """Whether the environment's system messages are rendered; a policy fine-tuned on them being absent needs none."""
    date: Annotated[str, AfterValidator(_iso_date), OutOfKeyAt("2024-07-26")]
    """The date for templates that print today's; a resumed run must have the prompts of an unbroken one."""
    stop_tokens: list[str]
    """Further control tokens that end a turn, besides the template's own and the tokenizer's eos."""

    @property
    def day(self) -> datetime.date:
        return datetime.date.fromisoformat(self.date)


CHAT_AT_FIRST = {
    "tool_format": "auto",
    "tool_schemas": "full",
    "thinking": None,
    "history": "auto",
    "system": True,
    "stop_tokens": [],
}
"""At these values the chat settings are no part of the run key."""
