"""A model's own chat template, split into pieces that can be appended to a conversation."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2

from rti_exp.rollout.text_encoder import placeholder, split_at
from rti_exp.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Text = tuple[str, dict[str, str]]
"""A template's text with placeholders, and the data of each placeholder."""
_THOUGHT = re.compile(r"<think>\s*</think>\s*")
_TURN = placeholder(10**9)
_FIRST_CONTROL = 2 * 10**9
"""The number of the first placeholder for control tokens in tools. Those of contents count from 0."""


class UnsupportedTemplate(ValueError):
    """The chat template cannot be used; the message says why."""


class ChatTemplate:
    """Renders messages by `tokenizer.chat_template`, in the sandbox of transformers.

    The template sees placeholders instead of the messages' contents, so that no content can change what it does.

    Args:
        control: the tokenizer's control tokens, one of which must end an assistant turn.
        thinking: the template's `enable_thinking`; None leaves it undefined.

    Raises:
        UnsupportedTemplate: there is no template, or no control token ends an assistant turn.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, control: Mapping[str, int], *, thinking: bool | None = None
    ) -> None:
        if not tokenizer.chat_template:
            raise UnsupportedTemplate("the tokenizer has no chat template")
        self._tokenizer = tokenizer
        self._control = control
        self._options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        self._after_turn = functools.lru_cache(maxsize=1024)(self._render_after_turn)
        self._knows_tool_role = self._has_tool_role()
        self.end = self._end_of_turn()
        """The control token that ends an assistant turn."""

    def opening(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, markers: Sequence[str] = ()
    ) -> Text:
        """A conversation up to the header of the next assistant turn.

        The control tokens `markers` count in the assistant's contents. Its thinking goes to the template separately.
        """
        shown, data = self._placed(messages, markers)
        schemas, more = self._tools(tools)
        return self._render(shown, schemas), {**data, **more}

    def after_turn(self, messages: Sequence[Message]) -> Text:
        """The text after an assistant turn's content: its end, these messages, and the header of the next turn."""
        _, data = self._placed(messages)
        return self._after_turn(tuple((message.role, bool(message.content)) for message in messages)), data

    def extends(self) -> bool:
        """Whether a longer probe conversation renders as the shorter one plus the appended text.

        Ignores thinking that the template drops from earlier turns, and an empty thought in a turn's header.
        """
        opening = [Message(role="system", content="s"), Message(role="user", content="u")]
        turn, answer = Message(role="assistant", content="a"), Message(role="tool", content="t")
        last = Message(role="user", content="v")
        try:
            rendered = _filled(*self.opening([*opening, turn, answer, turn, last], ()))
            pieces = [_filled(*self.opening(opening, ()))]
            pieces += ["a" + _filled(*self.after_turn([message])) for message in (answer, last)]
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

    def _placed(
        self, messages: Sequence[Message], markers: Sequence[str] = ()
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
            role, content = message.role, message.content
            if role == "tool" and not self._knows_tool_role:
                role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
            if role != "assistant":
                shown.append({"role": role, "content": hidden(content)})
                continue
            pieces = split_at(content, markers)
            kept = "".join(piece if index % 2 else hidden(piece) for index, piece in enumerate(pieces))
            thought = {"reasoning_content": hidden(message.thinking)} if message.thinking else {}
            shown.append({"role": role, "content": kept, **thought})
        return shown, data

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> tuple[list[Any] | None, dict[str, str]]:
        """Tools in the OpenAI form; control tokens in their text are data."""
        if not tools:
            return None, {}
        names = {text: placeholder(_FIRST_CONTROL + index) for index, text in enumerate(self._control)}

        def safe(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {safe(key): safe(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return [safe(item) for item in value]
            if isinstance(value, str):
                for text, name in names.items():
                    value = value.replace(text, name)
            return value

        wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        return [safe(tool) for tool in wrapped], {name: text for text, name in names.items()}

    def _render(self, messages: Sequence[Mapping[str, str]], tools: list[Any] | None) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
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

    def _render_after_turn(self, kinds: tuple[tuple[str, bool], ...]) -> str:
        user, turn = {"role": "user", "content": "u"}, {"role": "assistant", "content": _TURN}
        later = [
            Message(role=role, content="x" if filled else "")  # pyright: ignore[reportArgumentType]
            for role, filled in kinds
        ]
        shown, _ = self._placed(later)
        parts = self._render([user, turn, *shown], None).split(_TURN)
        if len(parts) != 2:
            raise UnsupportedTemplate("the chat template does not render an assistant turn as it was written")
        return parts[1]

    def _has_tool_role(self) -> bool:
        self._knows_tool_role = True
        try:
            text = self._render_after_turn((("tool", True),))
        except UnsupportedTemplate:
            return False
        return placeholder(0) in text

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


def _filled(text: str, data: Mapping[str, str]) -> str:
    for name, content in data.items():
        text = text.replace(name, content)
    return text


def _without_thoughts(text: str) -> str:
    return _THOUGHT.sub("", text)
