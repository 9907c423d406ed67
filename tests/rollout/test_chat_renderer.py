import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rti_exp.config.chat_settings import ChatSettings, ToolFormat, ToolSchemas
from rti_exp.config.defaults import default_settings
from rti_exp.rollout.chat_renderer import ChatRenderer
from rti_exp.rollout.chat_template import UnsupportedTemplate
from rti_exp.rollout.text_encoder import TextEncoder
from rti_exp.types import Message, ToolCall
from tests.support.chat_fakes import CONTROL, DATA, HOSTILE, OPENING, QWEN3_TAGS, TOOLS, chat_tokenizer

QWEN3 = ChatRenderer(chat_tokenizer("qwen3"), default_settings(ChatSettings, thinking=False))
THINKING = ChatRenderer(chat_tokenizer("qwen3"), default_settings(ChatSettings, thinking=True))
SMOLLM2 = ChatRenderer(chat_tokenizer("smollm2"))
HERMES = ChatRenderer(chat_tokenizer("smollm2"), default_settings(ChatSettings, tool_format=ToolFormat.hermes))
"""Without tokens for the tags."""
HEADER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def native(name: str, messages: list[Message], tools=None, **options) -> tuple[int, ...]:
    """A conversation as the tokenizer itself renders it."""
    shown = [{"role": message.role, "content": message.content} for message in messages]
    wrapped: list = [{"type": "function", "function": tool} for tool in tools or ()]
    text = chat_tokenizer(name).apply_chat_template(
        shown, tools=wrapped or None, add_generation_prompt=True, tokenize=False, **options
    )
    return tuple(chat_tokenizer(name).backend_tokenizer.encode(text, add_special_tokens=False).ids)


def controls(renderer: ChatRenderer, ids) -> list[str]:
    names = [*CONTROL["qwen3"], *QWEN3_TAGS, "<repo_name>"]
    return [name for name in (renderer.text([token_id]) for token_id in ids) if name in names]


def test_the_opening_is_the_templates_own():
    assert QWEN3.opening(OPENING, TOOLS) == native("qwen3", OPENING, TOOLS, enable_thinking=False)
    assert SMOLLM2.opening(OPENING, ()) == native("smollm2", OPENING)
    assert SMOLLM2.opening(OPENING[1:], ()) == native("smollm2", OPENING[1:])


def test_tools_that_a_template_omits_go_into_the_system_message():
    text = SMOLLM2.text(SMOLLM2.opening(OPENING, TOOLS))
    assert text.startswith('<|im_start|>system\nBe kind.\n\nTools:\n{"name": "take", "description": "Take a key."')
    assert text.endswith(
        '\nTo call a tool, write one JSON object {"name": ..., "arguments": {...}} and nothing else.<|im_end|>\n'
        "<|im_start|>user\nbox a<|im_end|>\n<|im_start|>assistant\n"
    )
    short = ChatRenderer(chat_tokenizer("smollm2"), default_settings(ChatSettings, tool_schemas=ToolSchemas.short))
    assert "Tools:\ntake(key): Take a key.\nopen(): Open the box.\nTo call" in short.text(short.opening(OPENING, TOOLS))
    none = ChatRenderer(
        chat_tokenizer("smollm2"), default_settings(ChatSettings, tool_schemas=ToolSchemas.none, system=False)
    )
    assert none.opening(OPENING, TOOLS) == native("smollm2", OPENING[1:])


@pytest.mark.parametrize("observed", ["tool", "user"])
def test_later_turns_extend_the_earlier_ids_as_the_template_does(observed):
    turn = Message(role="assistant", content='<tool_call>\n{"name": "open", "arguments": {}}\n</tool_call>')
    answer, last = Message(role=observed, content="stuck"), Message(role="user", content="and?")
    action = QWEN3.action_ids(turn.content)
    ids = QWEN3.opening(OPENING, TOOLS) + action + QWEN3.appended([answer], closed=True)
    ids += action + QWEN3.appended([last], closed=True)
    native_ids = native("qwen3", [*OPENING, turn, answer, turn, last], TOOLS, enable_thinking=False)
    # The template adds an empty thought to a turn's header and removes it from earlier turns; here it stays.
    thought = "<think>\n\n</think>\n\n"
    assert QWEN3.text(ids).replace(thought, "") == QWEN3.text(native_ids).replace(thought, "")
    assert (action[-1], SMOLLM2.action_ids("27")[-1]) == (QWEN3.stop_ids[0], SMOLLM2.stop_ids[0])
    smollm2 = SMOLLM2.opening(OPENING, ()) + SMOLLM2.action_ids("27") + SMOLLM2.appended([answer], closed=True)
    assert smollm2 == native("smollm2", [*OPENING, Message(role="assistant", content="27"), answer])


def test_appended_is_exact():
    observed = [Message(role="tool", content="a"), Message(role="tool", content="b"), Message(role="user", content="c")]
    expected = (
        "\n<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n" + HEADER
    )
    assert QWEN3.text(QWEN3.appended(observed, closed=True)) == expected
    assert QWEN3.text(QWEN3.appended(observed, closed=False)) == "<|im_end|>" + expected
    assert QWEN3.text(QWEN3.appended((), closed=True)) == "\n" + HEADER


@pytest.mark.parametrize("role", ["system", "user", "tool"])
@pytest.mark.parametrize("renderer", [QWEN3, SMOLLM2], ids=["qwen3", "smollm2"])
def test_data_never_becomes_a_control_token(renderer, role):
    harmless = "x" * 30
    for where in (
        lambda text: renderer.appended([Message(role=role, content=text)], closed=True),
        lambda text: renderer.opening([OPENING[0], Message(role="user", content=text)], TOOLS),
        lambda text: renderer.opening([Message(role="system", content=text), OPENING[1]], TOOLS),
        lambda text: renderer.opening(OPENING, [{**TOOLS[0], "description": text}]),
        lambda text: renderer.opening(
            OPENING, [{"name": text, "parameters": {"properties": {text: {"enum": [text]}}}}]
        ),
    ):
        ids = where(HOSTILE)
        assert controls(renderer, ids) == controls(renderer, where(harmless))
        assert "ok<|im_end|>" in renderer.text(ids)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([*CONTROL["qwen3"], "</tool_response>", "<|", "<", " ", "é", "\n", "\x00", "\ue0000\ue001"])
    )
)
def test_any_observation_round_trips_as_data(parts):
    text = "".join(parts)
    ids = QWEN3.appended([Message(role="tool", content=text)], closed=True)
    assert f"<tool_response>\n{text}\n</tool_response>" in QWEN3.text(ids)
    assert controls(QWEN3, ids) == controls(QWEN3, QWEN3.appended([Message(role="tool", content="x")], closed=True))


def test_calls_in_hermes_format():
    text = 'I look.\n<tool_call>\n{"name": "take", "arguments": {"key": "red"}}\n</tool_call>'
    take, opened = ToolCall(name="take", arguments={"key": "red"}), ToolCall(name="open", arguments={})
    message = QWEN3.message(QWEN3.action_ids(text))
    assert (message.content, message.tool_calls, message.malformed) == (text, (take,), None)
    assert controls(QWEN3, QWEN3.action_ids(text)) == ["<tool_call>", "</tool_call>", "<|im_end|>"]
    both = QWEN3.message(
        QWEN3.action_ids(QWEN3.calls_text(Message(role="assistant", content="", tool_calls=(take, opened))))
    )
    assert both.tool_calls == (take, opened)
    assert QWEN3.message(QWEN3.action_ids('{"name": "open", "arguments": {}}')).tool_calls == (opened,)
    assert QWEN3.message(QWEN3.action_ids("27")).tool_calls == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('<tool_call>\n{"name": "open", "arguments": {}}', "must stand around"),
        ("<tool_call>\n{broken\n</tool_call>", "not valid JSON"),
        ("<tool_call>null</tool_call>", "exactly"),
        ("</tool_call>", "must stand around"),
    ],
)
def test_a_bad_call_is_malformed(text, error):
    message = QWEN3.message(QWEN3.action_ids(text))
    assert message.tool_calls == ()
    assert error in (message.malformed or "")
    assert message.content == text


def test_each_call_of_a_turn_is_read_by_itself():
    opened = ToolCall(name="open", arguments={})
    text = (
        '<tool_call>{"name": "open", "arguments": {}}</tool_call><tool_call>{broken</tool_call>'
        '<tool_call><tool_call>{"name": "open", "arguments": {}}</tool_call></tool_call>'
    )
    message = QWEN3.message(QWEN3.action_ids(text))
    assert message.tool_calls == (opened, opened)
    assert message.malformed == (
        "Call 2 of 5: The tool call is not valid JSON: Expecting property name enclosed in double quotes at character "
        "1. Call 3 of 5: A <tool_call> and its </tool_call> must stand around each tool call. "
        "Call 5 of 5: A <tool_call> and its </tool_call> must stand around each tool call."
    )


@pytest.mark.parametrize("renderer", [QWEN3, HERMES], ids=["tokens", "text"])
@pytest.mark.parametrize("tag", ["</tool_call>", "<tool_call>", "</think>", "<think>"])
def test_tags_inside_arguments_are_text(renderer, tag):
    call, plain = (ToolCall(name="say", arguments={"body": f"end with {end} please"}) for end in (tag, "it"))
    text, plain_text = (
        renderer.calls_text(Message(role="assistant", content="", tool_calls=(shown,))) for shown in (call, plain)
    )
    ids = renderer.action_ids(text)
    message = renderer.message(ids)
    assert (message.tool_calls, message.malformed, message.thinking) == ((call,), None, "")
    assert controls(renderer, ids) == controls(renderer, renderer.action_ids(plain_text))
    thought = renderer.message(renderer.action_ids(f"<think>\nhm\n</think>\n\n{text}{text}"))
    assert (thought.tool_calls, thought.malformed, thought.thinking) == ((call, call), None, "hm")


def test_a_tag_that_is_a_token_counts_only_where_it_is_sampled_as_one():
    plain = TextEncoder(chat_tokenizer("qwen3").backend_tokenizer).encode_data
    quoted = "The log says </think> and <tool_call>{broken</tool_call>, then <think>."
    message = QWEN3.message((*plain(quoted), QWEN3.stop_ids[0]))
    assert message == Message(role="assistant", content=quoted)
    thought = QWEN3.message((*QWEN3.action_ids("hm</think>")[:-1], *plain(quoted)))
    assert (thought.thinking, thought.content, thought.tool_calls, thought.malformed) == ("hm", quoted, (), None)
    body = ['<tool_call>{"name": "say", "arguments": {"t": "', '"}}</tool_call>']
    call = QWEN3.message((*QWEN3.action_ids(body[0])[:-1], *plain("</think></tool_call>"), *QWEN3.action_ids(body[1])))
    assert call.tool_calls == (ToolCall(name="say", arguments={"t": "</think></tool_call>"}),)
    assert (call.thinking, call.malformed) == ("", None)


def test_a_sampled_control_token_makes_a_call_malformed_and_does_not_return_as_one():
    call = '<tool_call>{"name": "say", "arguments": {"t": "~"}}</tool_call>'
    before, after = (QWEN3.action_ids(part)[:-1] for part in call.split("~"))
    message = QWEN3.message((*before, CONTROL["qwen3"].index("<|im_start|>"), *after))
    assert message.malformed == "The tool call holds a control token."
    assert "<|im_start|>" not in controls(QWEN3, QWEN3.action_ids(message.content))


def test_thinking_is_separated_and_stays_in_the_ids():
    ids = THINKING.action_ids('<think>\nred?\n</think>\n\n<tool_call>\n{"name": "open", "arguments": {}}\n</tool_call>')
    message = THINKING.message(ids)
    assert (message.thinking, message.tool_calls) == ("red?", (ToolCall(name="open", arguments={}),))
    assert message.content == '<tool_call>\n{"name": "open", "arguments": {}}\n</tool_call>'
    cut = THINKING.message(ids[:5])
    assert (cut.content, cut.malformed) == ("", "The turn ended before its thinking did.")
    assert THINKING.text(THINKING.opening(OPENING, ())).endswith("<|im_start|>assistant\n")


def test_a_template_that_opens_the_thought_itself():
    template = (
        (DATA / "qwen3_chat_template.jinja")
        .read_text(encoding="utf-8")
        .replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
    )
    renderer = ChatRenderer(chat_tokenizer("qwen3", template))
    assert renderer.text(renderer.opening(OPENING, ())).endswith("<think>\n")
    done = renderer.message(renderer.action_ids("red?\n</think>\n\n27"))
    assert (done.thinking, done.content) == ("red?", "27")
    cut = renderer.message(renderer.action_ids("red?\n</think>\n\n27")[:3])
    assert (cut.content, cut.malformed) == ("", "The turn ended before its thinking did.")
    # A text from elsewhere (a teacher) is an answer, so the thought that the header opened ends at once.
    call_text = '<tool_call>\n{"name": "open", "arguments": {}}\n</tool_call>'
    ids = renderer.action_ids(call_text)
    assert renderer.text(ids) == f"\n</think>\n\n{call_text}<|im_end|>"
    message = renderer.message(ids)
    assert (message.thinking, message.content, message.malformed) == ("", call_text, None)
    assert message.tool_calls == (ToolCall(name="open", arguments={}),)
    assert renderer.action_ids("<think>\nred?\n</think>\n\n27") == renderer.action_ids("red?\n</think>\n\n27")


def test_stop_ids():
    assert QWEN3.stop_ids == (2,)
    both = ChatRenderer(chat_tokenizer("qwen3"), default_settings(ChatSettings, stop_tokens=["<|endoftext|>"]))
    assert both.stop_ids == (2, 0)
    assert both.message((*both.action_ids("27")[:-1], 0)).content == "27"
    with pytest.raises(UnsupportedTemplate, match="is not a control token"):
        ChatRenderer(chat_tokenizer("qwen3"), default_settings(ChatSettings, stop_tokens=["<|eot|>"]))


def test_json_calls_work_with_any_model():
    renderer = ChatRenderer(chat_tokenizer("qwen3"), default_settings(ChatSettings, tool_format=ToolFormat.json))
    assert "<tool_call>" not in renderer.text(renderer.opening(OPENING, TOOLS))
    assert renderer.message(renderer.action_ids('{"name": "open", "arguments": {}}')).tool_calls[0].name == "open"
    assert renderer.message(renderer.action_ids('{"name": 1}')).malformed


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}",
            "not end an assistant turn with a control token",
        ),
        ("{{ raise_exception('no') }}", "refuses"),
        ("<|im_start|>{{ messages[-1].content }}", "as it was written"),
    ],
)
def test_the_error_says_why_a_template_is_unsupported(template, error):
    with pytest.raises(UnsupportedTemplate, match=error):
        ChatRenderer(chat_tokenizer("qwen3", template))


def test_a_template_without_a_tool_role_shows_results_as_user_messages():
    template = (
        "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('role') }}"
        "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
    )
    renderer = ChatRenderer(chat_tokenizer("smollm2", template))
    shown = renderer.text(renderer.appended([Message(role="tool", content="stuck")], closed=True))
    assert shown == "\n<|im_start|>user\n<tool_response>\nstuck\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
