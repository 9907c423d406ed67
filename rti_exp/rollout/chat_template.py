"""A model's own chat template, split into pieces that can be appended to a conversation."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jinja2

from rti_exp.config.settings import SettingsError
from rti_exp.rollout.text_encoder import PLACEHOLDER_START, placeholder
from rti_exp.types import Message, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Text = tuple[str, dict[str, str]]
"""A template's text with placeholders, and the data of each placeholder."""
_THOUGHT = re.compile(r"<think>\s*</think>\s*")
_TURN = placeholder(10**9)
_FIRST_CONTROL = 2 * 10**9
"""The number of the first placeholder for control tokens in tools. Those of contents count from 0."""


class UnsupportedTemplate(SettingsError):
    """The chat template cannot be used; the message says why."""


class ChatTemplate:
    """Renders messages by `tokenizer.chat_template`, in the sandbox of transformers.

    The template sees placeholders instead of the messages' contents, so that no content can change what it does. What
    it refuses is tried once, at the start, and avoided: a system message joins the first user message, a tool's answer
    becomes a user message, consecutive messages of one role are joined.

    Args:
        control: the tokenizer's control tokens, one of which must end an assistant turn.
        thinking: the template's `enable_thinking`; None leaves it undefined.
        date: what a template that asks for today's date is given.

    Raises:
        UnsupportedTemplate: there is no template, or no control token ends an assistant turn.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        control: Mapping[str, int],
        *,
        thinking: bool | None = None,
        date: datetime.date = datetime.date(2024, 7, 26),
    ) -> None:
        if not tokenizer.chat_template:
            raise UnsupportedTemplate("the tokenizer has no chat template")
        self._tokenizer = tokenizer
        self._control = control
        self._clock = _frozen_clock(date)
        self._options: dict[str, Any] = {"date_string": date.strftime("%d %b %Y")}
        if thinking is not None:
            self._options["enable_thinking"] = thinking
        self._after_turn = functools.lru_cache(maxsize=1024)(self._render_after_turn)
        self._opening_system = self._accepts("system", "user")
        self._later_system = self._accepts("user", "assistant", "system")
        self._tool_role = self._accepts("user", "assistant", "tool") and self._accepts(
            "user", "assistant", "tool", "user"
        )
        self._assistant_first = self._accepts("assistant", "user")
        repeated = {
            "user": ("user", "user"),
            "assistant": ("user", "assistant", "assistant", "user"),
            "tool": ("user", "assistant", "tool", "tool"),
        }
        self._joined = frozenset(role for role, roles in repeated.items() if not self._accepts(*roles))
        self.end = self._end_of_turn()
        """The control token that ends an assistant turn."""

    def _accepts(self, *roles: str) -> bool:
        """Whether the template renders a conversation of these roles, with every message's content, in order."""
        shown = [{"role": role, "content": placeholder(place)} for place, role in enumerate(roles)]
        try:
            text = self._render(shown, None)
        except UnsupportedTemplate:
            return False
        places = [text.find(placeholder(place)) for place in range(len(roles))]
        return -1 not in places and places == sorted(places)

    def opening(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        pieces: Callable[[str], list[str]] = lambda text: [text],
    ) -> Text:
        """A conversation up to the header of the next assistant turn.

        `pieces` splits the assistant's contents at the control tokens that count in them. Its thinking goes to the
        template separately.
        """
        shown, data = _placed(self._shaped(messages, opening=True), pieces)
        schemas, more = self._tools(tools)
        return self._render(shown, schemas), {**data, **more}

    def after_turn(self, messages: Sequence[Message]) -> Text:
        """The text after an assistant turn's content: its end, these messages, and the header of the next turn."""
        shaped = self._shaped(messages)
        _, data = _placed(shaped)
        return self._after_turn(tuple((message.role, bool(message.content)) for message in shaped)), data

    def lead(self) -> str:
        """White space that the template writes between a turn's header and its text."""
        user = Message(role="user", content="u")
        header, _ = self.opening([user], ())
        before, _, _ = self.opening([user, Message(role="assistant", content="a")], ())[0].partition(placeholder(1))
        lead = before.removeprefix(header)
        return lead if before.startswith(header) and lead.isspace() else ""

    def extends(self) -> bool:
        """Whether a longer probe conversation renders as the shorter one plus the appended text.

        Ignores thinking that the template drops from earlier turns, and an empty thought in a turn's header.
        """
        opening = [Message(role="system", content="s"), Message(role="user", content="u")]
        turn, answer = Message(role="assistant", content="a"), Message(role="tool", content="t")
        last = Message(role="user", content="v")
        try:
            rendered = filled(*self.opening([*opening, turn, answer, turn, last], ()))
            pieces = [filled(*self.opening(opening, ()))]
            pieces += ["a" + filled(*self.after_turn([message])) for message in (answer, last)]
        except UnsupportedTemplate:
            return False
        return _without_thoughts("".join(pieces)) == _without_thoughts(rendered)

    def renders_tools(self, name: str, *, marked: str) -> bool:
        """Whether the template renders a tool's name, in a text that contains `marked`."""
        tool = {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            text, _ = self.opening([Message(role="user", content="u")], [tool])
        except UnsupportedTemplate:
            return False
        return name in text and marked in text

    def _shaped(self, messages: Sequence[Message], *, opening: bool = False) -> list[Message]:
        """The messages in roles, and in an order of roles, that the template accepts."""
        shaped: list[Message] = []
        joins = False
        for place, message in enumerate(messages):
            first = opening and place == 0
            if message.role == "tool" and not self._tool_role:
                message = Message(role="user", content=f"<tool_response>\n{message.content}\n</tool_response>")
            is_system = message.role == "system"
            if is_system and not (self._opening_system if first else self._later_system):
                message = replace(message, role="user")
            if shaped and shaped[-1].role == message.role and (joins or message.role in self._joined):
                shaped[-1] = _join(shaped[-1], message)
            else:
                shaped.append(message)
            joins = first and is_system and message.role == "user"
        begins = next((place for place, message in enumerate(shaped) if message.role != "system"), len(shaped))
        if opening and not self._assistant_first and shaped[begins:] and shaped[begins].role == "assistant":
            shaped.insert(begins, Message(role="user", content=""))
        return shaped

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> tuple[list[Any] | None, dict[str, str]]:
        """Tools in the OpenAI form; control tokens and placeholders in their text are data."""
        if not tools:
            return None, {}
        texts = sorted((*self._control, PLACEHOLDER_START), key=len, reverse=True)
        names = {text: placeholder(_FIRST_CONTROL + index) for index, text in enumerate(texts)}
        active = re.compile("|".join(map(re.escape, texts)))

        def safe(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {safe(key): safe(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [safe(item) for item in value]
            if isinstance(value, str):
                return active.sub(lambda match: names[match[0]], value)
            return value

        wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        return [safe(tool) for tool in wrapped], {name: text for text, name in names.items()}

    def _source(self, tools: list[Any] | None) -> str:
        source = self._tokenizer.get_chat_template(tools=tools)
        return self._clock + source if "strftime_now" in source else source

    def _render(self, messages: Sequence[Mapping[str, str]], tools: list[Any] | None) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=self._source(tools),
                tools=tools,
                add_generation_prompt=True,
                tokenize=False,
                **self._options,
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UnsupportedTemplate(f"the chat template refuses a conversation of {roles}: {error}") from error
        assert isinstance(text, str)
        return text

    def _render_after_turn(self, kinds: tuple[tuple[Role, bool], ...]) -> str:
        user, turn = {"role": "user", "content": "u"}, {"role": "assistant", "content": _TURN}
        shown, _ = _placed([Message(role=role, content="x" if has_content else "") for role, has_content in kinds])
        parts = self._render([user, turn, *shown], None).split(_TURN)
        if len(parts) != 2:
            raise UnsupportedTemplate("the chat template does not render an assistant turn as it was written")
        return parts[1]

    def _end_of_turn(self) -> str:
        text = self._after_turn((("user", True),)).lstrip()
        ends = [token for token in self._control if text.startswith(token)]
        if not ends:
            raise UnsupportedTemplate("the chat template does not end an assistant turn with a control token")
        return max(ends, key=len)

    def after_end(self, text: str) -> tuple[str, str]:
        """`after_turn`'s text as (end of the turn, rest).

        Raises:
            UnsupportedTemplate: the turn ends differently before these messages.
        """
        stripped = text.lstrip()
        if not stripped.startswith(self.end):
            raise UnsupportedTemplate("the chat template ends an assistant turn in more than one way")
        return self.end, stripped.removeprefix(self.end)


def filled(text: str, data: Mapping[str, str]) -> str:
    """A template's text with its data."""
    for name, content in data.items():
        text = text.replace(name, content)
    return text


def _placed(
    messages: Sequence[Message], pieces: Callable[[str], list[str]] = lambda text: [text]
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Messages in the template's form, with placeholders for contents that are not empty."""
    shown: list[dict[str, str]] = []
    data: dict[str, str] = {}

    def hidden(text: str) -> str:
        if not text:
            return ""
        name = placeholder(len(data))
        data[name] = text
        return name

    for message in messages:
        split = pieces(message.content) if message.role == "assistant" else [message.content]
        kept = "".join(piece if index % 2 else hidden(piece) for index, piece in enumerate(split))
        thought = {"reasoning_content": hidden(message.thinking)} if message.thinking else {}
        shown.append({"role": message.role, "content": kept, **thought})
    return shown, data


def _frozen_clock(date: datetime.date) -> str:
    """A template's first line: a `strftime_now` that always gives this date, at midnight.

    That of transformers reads the clock, so that prompts would depend on the day on which a run is resumed.
    """
    midnight = datetime.datetime.combine(date, datetime.time())
    codes = "".join(f" | replace({f'%{code}'!r}, {midnight.strftime(f'%{code}')!r})" for code in "aAbBcdHIjmMpSUwWxXyY")
    return "{% macro strftime_now(format) %}{{ format" + codes + " }}{% endmacro %}\n"


def _join(first: Message, second: Message) -> Message:
    thinking = "\n\n".join(filter(None, (first.thinking, second.thinking)))
    return replace(first, content=f"{first.content}\n\n{second.content}", thinking=thinking)


def _without_thoughts(text: str) -> str:
    return _THOUGHT.sub("", text)
