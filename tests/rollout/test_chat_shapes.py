"""Chat templates that refuse roles or orders of roles, print today's date, or go with a SentencePiece tokenizer."""

from __future__ import annotations

import datetime

import pytest

from rti_exp.config.chat_settings import ChatSettings, History
from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import SettingsError
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.chat_template import UnsupportedTemplate
from rti_exp.types import Message
from tests.support.chat_fakes import OPENING, TOOLS, chat_tokenizer, sentencepiece_tokenizer

GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPACED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + '<|im_end|>' }}{% else %}"
    "{{ '<|im_start|>[' + m.role + '] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}"
)
CALLS = [Message(role="tool", content="one"), Message(role="tool", content="two")]


def ids_of(template: str, **settings: object) -> tuple[ChatRenderer, str]:
    renderer = ChatRenderer(chat_tokenizer("smollm2", template), default_settings(ChatSettings, **settings))
    return renderer, renderer.text(renderer.opening(OPENING, TOOLS))


@pytest.mark.parametrize("system", [True, False])
def test_system_and_tools_go_into_the_first_user_message_of_a_template_without_a_system_role(system: bool) -> None:
    _, text = ids_of(GEMMA, system=system)
    assert text.startswith("<|im_start|>user\nBe kind.\n\nTools:\n" if system else "<|im_start|>user\nTools:\n")
    assert text.endswith("and nothing else.\n\nbox a<|im_end|>\n<|im_start|>assistant\n")
    assert text.count("<|im_start|>") == 2


def test_consecutive_messages_of_one_role_are_joined_where_they_must_alternate() -> None:
    renderer, _ = ids_of(GEMMA)
    user = "<|im_start|>user\n<tool_response>\none\n</tool_response>\n\n<tool_response>\ntwo\n</tool_response>"
    header = "<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.text(renderer.appended(CALLS, closed=True)) == f"\n{user}{header}"
    request = Message(role="system", content="Judge.")
    assert renderer.text(renderer.appended([*CALLS, request], closed=True)) == f"\n{user}\n\nJudge.{header}"
    greeted = [Message(role="system", content="Be kind."), Message(role="assistant", content="Hi."), OPENING[1]]
    assert renderer.text(renderer.opening(greeted, ())) == (
        f"<|im_start|>user\nBe kind.{header}Hi.<|im_end|>\n<|im_start|>user\nbox a{header}"
    )
    assert renderer.text(renderer.opening(greeted[1:], ())).startswith(f"<|im_start|>user\n{header}Hi.")


def test_a_whole_conversation_is_rendered_in_an_order_that_the_template_accepts() -> None:
    renderer, _ = ids_of(GEMMA, history=History.template)
    turn = Message(role="assistant", content="So.")
    text = renderer.text(renderer.conversation(OPENING, TOOLS, [turn, *CALLS, turn, turn, OPENING[1]]))
    assert "<|im_start|>assistant\nSo.\n\nSo.<|im_end|>\n<|im_start|>user\nbox a" in text
    assert renderer.text(renderer.opening(OPENING, TOOLS)) == text.partition("So.")[0]


def test_what_a_template_accepts_stays_as_it_is() -> None:
    renderer, text = ids_of(PLAIN)
    assert text.startswith("<|im_start|>system\nBe kind.")
    assert renderer.text(renderer.appended([*CALLS, *OPENING], closed=True)) == (
        "\n<|im_start|>tool\none<|im_end|>\n<|im_start|>tool\ntwo<|im_end|>\n"
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nbox a<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_later_system_message_that_a_template_would_move_to_the_front_becomes_a_user_message() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
        "{% for m in messages %}{% if m.role != 'system' %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endif %}{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    renderer, text = ids_of(template)
    assert text.startswith("Be kind.")
    request = renderer.appended([Message(role="system", content="Judge.")], closed=True)
    assert renderer.text(request) == "\n<|im_start|>user\nJudge.<|im_end|>\n<|im_start|>assistant\n"


def test_an_unsupported_template_is_an_error_of_the_settings() -> None:
    with pytest.raises(SettingsError, match="refuses"):
        ids_of("{{ raise_exception('no') }}")
    assert issubclass(UnsupportedTemplate, SettingsError)


@pytest.mark.parametrize(
    "clock",
    [
        "{{ strftime_now('%d %b %Y') }}",
        "{% if date_string is not defined %}{% set date_string = strftime_now('%Y') %}{% endif %}{{ date_string }}",
    ],
)
def test_a_date_in_the_prompt_is_the_configs_and_never_the_clocks(clock: str) -> None:
    _, text = ids_of(f"{clock}{PLAIN}")
    assert text.startswith("26 Jul 2024<|im_start|>")
    _, text = ids_of(f"{clock}{PLAIN}", date="2025-03-01")
    assert text.startswith("01 Mar 2025<|im_start|>")


def test_every_format_of_a_date() -> None:
    day = datetime.datetime(2025, 3, 1)
    for code in "aAbBdHIjmMpSUwWyY":
        _, text = ids_of("{{ strftime_now('%" + code + "') }}" + PLAIN, date="2025-03-01")
        assert text.partition("<")[0] == day.strftime(f"%{code}")


@pytest.mark.parametrize(("template", "first"), [(PLAIN, "The"), (SPACED, "▁The")])
def test_a_turn_is_encoded_behind_its_header(template: str, first: str) -> None:
    tokenizer = sentencepiece_tokenizer(template)
    renderer = ChatRenderer(tokenizer)
    action = renderer.action_ids("The answer")
    assert tokenizer.convert_ids_to_tokens(list(action)) == [first, "▁answer", "<|im_end|>"]
    opening = renderer.opening([OPENING[1]], ())
    shown = [{"role": "user", "content": "box a"}, {"role": "assistant", "content": "The answer"}]
    text = tokenizer.apply_chat_template(shown, tokenize=False)
    assert isinstance(text, str)
    native = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    assert tuple(native[: len(opening) + len(action)]) == opening + action
    assert renderer.message(action).content == "The answer"
    call = '{"name": "open", "arguments": {"key": " a"}}'
    assert renderer.message(renderer.action_ids(call)).tool_calls[0].arguments == {"key": " a"}


def test_a_tokenizer_whose_unknown_token_is_special_is_supported() -> None:
    renderer = ChatRenderer(sentencepiece_tokenizer(PLAIN))
    ids = renderer.appended([Message(role="tool", content="\N{SNOWMAN} <unk>")], closed=True)
    assert renderer.text(ids).count("<unk>") == 2
