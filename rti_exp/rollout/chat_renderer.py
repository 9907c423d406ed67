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
from rti_exp.engines.model_text import THINK, THINK_END, UNENDED_THINKING, split_thinking, tags_in
from rti_exp.rollout.chat_template import ChatTemplate, UnsupportedTemplate, filled
from rti_exp.rollout.text_encoder import TextEncoder, after_placeholders, split_at, split_before
from rti_exp.rollout.tool_calls import CallFormat, HermesCalls, JsonCalls, Places, tools_text
from rti_exp.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
        if settings is None:
            from rti_exp.config.defaults import default_settings  # imports Hydra

            settings = default_settings(ChatSettings)
        self.settings = settings
        self._text = TextEncoder(tokenizer.backend_tokenizer)
        self._template = ChatTemplate(
            tokenizer, self._text.control, thinking=self.settings.thinking, date=self.settings.day
        )
        self._native_tools = self._template.renders_tools("probe_tool", marked="<tool_call>")
        self._calls = self._format()
        self._end = self._text.control[self._template.end]
        self._tags = (*self._calls.markers, THINK, THINK_END)
        self._markers = frozenset(self._tags) & self._text.control.keys()
        self._stop_ids = self._stops(tokenizer)
        opening, _ = self._template.opening([Message(role="user", content="u")], ())
        self._thinks_at_once = opening.rstrip().endswith(THINK)
        self._header = self._end_of_header(opening)
        self._header_ids = self._text.encode_pieces(self._header)
        self._lead = self._template.lead()
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

    def _end_of_header(self, opening: str) -> list[str]:
        """The last control token of a turn's header, and the text after it: the pieces to the left of a turn."""
        *_, last = pieces = split_at(opening, tuple(self._text.control))
        tail = after_placeholders(last)
        return ["", pieces[-2], tail] if len(pieces) > 1 and tail == last else [tail]

    def _check_ids(self, tokenizer: PreTrainedTokenizerFast) -> None:
        """That a whole turn, rendered piece by piece, has the ids that the tokenizer gives its text."""
        hello = Message(role="user", content="Hello, world")
        turn = f"{THINK}{THINK_END}\n\nThe answer" if self._thinks_at_once else "The answer"
        opening, opening_ids = filled(*self._template.opening([hello], ())), self.opening([hello], ())
        end, rest = self._template.after_end(filled(*self._template.after_turn([hello])))
        text = f"{opening}{self._lead}{turn.removeprefix(THINK)}{end}{rest}"
        ids = opening_ids + self.action_ids(turn) + self.appended([hello], closed=True)
        native, native_opening = (
            tuple(tokenizer.backend_tokenizer.encode(part, add_special_tokens=False).ids) for part in (text, opening)
        )
        # A policy cannot write a token that spans the border of header and turn.
        spans_border = native[: len(opening_ids)] != native_opening
        if native_opening != opening_ids or (native != ids and not spans_border):
            raise UnsupportedTemplate(
                "the tokenizer encodes a text differently after a control token: it is not supported"
            )

    def _pieces(self, text: str) -> list[str]:
        """A turn's text, split at the tags that are control tokens."""
        return split_before(text, tags_in(text, self._markers))

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
        text, data = self._template.opening([*kept, *later], tools if native else (), pieces=self._pieces)
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
            thinks = any(tags_in(text, (THINK_END,)))
            text = text.removeprefix(THINK).lstrip("\n") if thinks else f"\n{THINK_END}\n\n{text}"
        return (*self._text.encode_behind(self._header, self._pieces(self._lead + text)), self._end)

    def calls_text(self, message: Message) -> str:
        """The turn's text, with its calls in this renderer's format."""
        return self._calls.write(message.tool_calls) if message.tool_calls else message.content

    def text(self, ids: Sequence[int]) -> str:
        """The text that these ids spell, with the names of control tokens; invalid UTF-8 becomes U+FFFD."""
        return self._text.decode(ids)

    def message(self, action_ids: Sequence[int]) -> Message:
        """The assistant message that these ids spell; an unreadable tool call is kept as `malformed`."""
        body = action_ids[:-1] if action_ids and action_ids[-1] in self._stop_ids else action_ids
        text, control = self._text.spelled(body, left=self._header_ids, lead=self._lead)
        # A tag that is a token counts where it was sampled as one, any other tag wherever it is spelled.
        spelled = frozenset(place for place, name in tags_in(text, self._tags) if name not in self._markers)
        places = Places(
            tags=spelled.union(place for place, name in control.items() if name in self._markers),
            control=frozenset(place for place, name in control.items() if name not in self._markers),
        )
        thinking, content = split_thinking(text, tags=places.tags, opened=self._thinks_at_once)
        if content is None:
            return Message(role="assistant", content="", thinking=thinking, malformed=UNENDED_THINKING)
        calls, malformed = self._calls.read(content, places.after(len(text) - len(content)))
        return Message(role="assistant", content=content, tool_calls=calls, malformed=malformed, thinking=thinking)


def _with_instruction(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with `text` at the end of the opening system message, or in a new one."""
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]
