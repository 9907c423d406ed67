"""Rendering by a model's own chat template (Qwen, SmolLM2, Llama, ...), token-in token-out.

    renderer = ChatRenderer(tokenizer)                       # a transformers fast tokenizer with a chat template
    ids = renderer.opening(episode.messages, episode.tools)  # up to the header of the first assistant turn
    message = renderer.message(sampled_ids)                  # .content, .tool_calls, .thinking, .malformed
    ids += sampled_ids + renderer.appended(observations, closed=sampled_ids[-1] in renderer.stop_ids)

Later prompts extend the earlier ids exactly, thinking included, unless `rerenders` is set. Then `conversation` renders
each prompt, and `rti_exp.rollout.segments` decides whether it extends the earlier ids or begins a new segment.
Contents are data: control tokens spelled out in a tool's answer, a user's text or a tool's schema stay plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rti_exp.config.chat_settings import ChatSettings, History, ToolFormat, ToolSchemas
from rti_exp.rollout.chat_template import ChatTemplate, UnsupportedTemplate
from rti_exp.rollout.text_encoder import TextEncoder
from rti_exp.rollout.tool_calls import CallFormat, HermesCalls, JsonCalls, MalformedToolCall, tools_text
from rti_exp.types import Message, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_THINK, _THOUGHT = "<think>", "</think>"


class ChatRenderer:
    """A `rti_exp.rollout.renderer.Renderer` by the tokenizer's own chat template.

    The template renders the tools if it does so in the format that we read; otherwise the system message lists them.
    A message's `content` is the assistant's text without its thinking, with calls as the assistant spelled them.

    Args:
        tokenizer: a transformers fast tokenizer with a chat template; it is copied, not changed.

    Raises:
        UnsupportedTemplate: no chat template, one that cannot be appended to, or a tokenizer that encodes a text
            differently after a control token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: ChatSettings | None = None) -> None:
        self.settings = settings or ChatSettings()
        self._text = TextEncoder(tokenizer.backend_tokenizer)
        self._template = ChatTemplate(tokenizer, self._text.control, thinking=self.settings.thinking)
        self._native_tools = self._template.renders_tools("probe_tool", marked="<tool_call>")
        self._calls = self._format()
        self._end = self._text.control[self._template.end]
        self._markers = tuple(
            marker for marker in (*self._calls.markers, _THINK, _THOUGHT) if marker in self._text.control
        )
        self._stop_ids = self._stops(tokenizer)
        header, _ = self._template.opening([Message(role="user", content="u")], ())
        self._thinks_at_once = header.rstrip().endswith(_THINK)
        self._check_ids(tokenizer)
        history = self.settings.history
        self.rerenders = history is History.template or (history is History.auto and not self._template.extends())
        """Whether `conversation` renders the prompt of every later turn again."""

    def _format(self) -> CallFormat:
        tool_format = self.settings.tool_format
        if tool_format is ToolFormat.auto:
            other_format = self._template.renders_tools("probe_tool", marked="<function=")
            tool_format = ToolFormat.hermes if self._native_tools and not other_format else ToolFormat.json
        self._native_tools = self._native_tools and tool_format is ToolFormat.hermes
        return HermesCalls() if tool_format is ToolFormat.hermes else JsonCalls()

    def _stops(self, tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
        unknown = [name for name in self.settings.stop_tokens if name not in self._text.control]
        if unknown:
            raise UnsupportedTemplate(f"stop_tokens={self.settings.stop_tokens}: {unknown[0]!r} is not a control token")
        stops = [self._end, *(self._text.control[name] for name in self.settings.stop_tokens)]
        if isinstance(tokenizer.eos_token_id, int):
            stops.append(tokenizer.eos_token_id)
        return tuple(dict.fromkeys(stops))

    def _check_ids(self, tokenizer: PreTrainedTokenizerFast) -> None:
        text, data = self._template.opening([Message(role="user", content="Hello, world")], ())
        for name, content in data.items():
            text = text.replace(name, content)
        if tuple(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids) != self._text.encode(text):
            raise UnsupportedTemplate(
                "the tokenizer encodes a text differently after a control token: it is not supported"
            )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The template's end of a turn, `settings.stop_tokens` and the tokenizer's eos, but no generation_config's."""
        return self._stop_ids

    def opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Ids of a new conversation, up to and including the header of the first assistant turn."""
        return self.conversation(messages, tools)

    def conversation(
        self, opening: Sequence[Message], tools: Sequence[Mapping[str, Any]], later: Sequence[Message] = ()
    ) -> tuple[int, ...]:
        """Ids of a conversation up to the header of the next assistant turn, as the template renders it."""
        kept = [message for message in opening if self.settings.system or message.role != "system"]
        schemas = self.settings.tool_schemas
        native = self._native_tools and schemas is ToolSchemas.full
        if tools and not native and schemas is not ToolSchemas.none:
            kept = _with_instruction(kept, f"{tools_text(tools, schemas)}\n{self._calls.instruction}")
        text, data = self._template.opening([*kept, *later], tools if native else (), markers=self._markers)
        return self._text.encode(text, data)

    def appended(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Ids that follow an assistant turn: its end (if it was cut off), these messages, and the next header."""
        text, data = self._template.after_turn(messages)
        end, rest = self._template.after_end(text)
        return self._text.encode(rest if closed else end + rest, data)

    def action_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a complete assistant turn with this text. Tags of calls and thinking count; the turn's end is added.

        If the template's header opens the thinking, a text without thinking ends it at once: all of it is the answer.
        """
        if self._thinks_at_once:
            text = text.removeprefix(_THINK).lstrip("\n") if _THOUGHT in text else f"\n{_THOUGHT}\n\n{text}"
        return (*self._text.encode(text, control=self._markers), self._end)

    def calls_text(self, message: Message) -> str:
        """The turn's text, with its calls in this renderer's format."""
        return self._calls.write(message.tool_calls) if message.tool_calls else message.content

    def text(self, ids: Sequence[int]) -> str:
        """The text that these ids spell, with the names of control tokens; invalid UTF-8 becomes U+FFFD."""
        return self._text.decode(ids)

    def message(self, action_ids: Sequence[int]) -> Message:
        """The assistant message that these ids spell; an unreadable tool call is kept as `malformed`."""
        body = action_ids[:-1] if action_ids and action_ids[-1] in self._stop_ids else action_ids
        text = self.text(body)
        thinking, content = _split_thinking(f"{_THINK}{text}" if self._thinks_at_once else text)
        if thinking is None:
            return Message(
                role="assistant", content="", thinking=content, malformed="The turn ended before its thinking did."
            )
        calls: tuple[ToolCall, ...] = ()
        malformed = None
        try:
            calls = self._calls.read(content)
        except MalformedToolCall as error:
            malformed = str(error)
        if calls and self._text.holds_control(body, besides=self._markers):
            calls, malformed = (), "The tool call holds a control token."
        return Message(role="assistant", content=content, tool_calls=calls, malformed=malformed, thinking=thinking)


def _split_thinking(text: str) -> tuple[str | None, str]:
    """(thinking, rest). If the thinking did not end, it is (None, thinking)."""
    before, ended, after = text.rpartition(_THOUGHT)
    if ended:
        return before.partition(_THINK)[2].strip("\n") if _THINK in before else before.strip("\n"), after.lstrip("\n")
    if text.lstrip().startswith(_THINK):
        return None, text.lstrip().removeprefix(_THINK).strip("\n")
    return "", text


def _with_instruction(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with `text` at the end of the opening system message, or in a new one."""
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]
