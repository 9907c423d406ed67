"""Settings of how conversations are rendered for a model with a chat template of its own."""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass, field

from rti_exp.config.settings import SettingsError


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    tool_format: ToolFormat = ToolFormat.auto
    tool_schemas: ToolSchemas = ToolSchemas.full
    thinking: bool | None = None
    """Given to the template as `enable_thinking`; null gives it nothing."""
    history: History = History.auto
    system: bool = True
    """Whether the environment's system messages are rendered; a policy fine-tuned on them being absent needs none."""
    date: str = "2024-07-26"
    """The date that a template with today's date is given, since a resumed run must have the prompts of an unbroken
    one."""
    stop_tokens: list[str] = field(default_factory=list)
    """Further control tokens that end a turn, besides the template's own and the tokenizer's eos."""

    def __post_init__(self) -> None:
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise SettingsError(f"policy.chat.date={self.date!r}: must be a date, as in 2024-07-26") from error

    @property
    def day(self) -> datetime.date:
        return datetime.date.fromisoformat(self.date)
