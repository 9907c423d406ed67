"""Our messages in the API's form, and strict reading of the API's answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rti_exp.engines.remote.messages import BadReply, FilteredReply, read_reply, to_chat, to_tools
from rti_exp.types import Message, ToolCall
from tests.support.faulty_server import completion


def read(**changes: Any) -> Message:
    return read_reply(json.dumps(completion(**changes))).message


def a_call(name: Any = "search", arguments: Any = '{"query": "x"}') -> dict[str, Any]:
    return {"id": "abc", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_without_an_id_get_one_and_are_answered_in_order() -> None:
    first, second = ToolCall(name="a", arguments={"x": "ä"}), ToolCall(name="b", arguments={})
    chat = to_chat(
        [
            Message(role="system", content="s"),
            Message(role="user", content="u"),
            Message(role="assistant", content="", tool_calls=(first, second)),
            Message(role="tool", content="first"),
            Message(role="tool", content="second"),
            Message(role="assistant", content="{broken", malformed="no JSON"),
            Message(role="tool", content="Error: no JSON"),
            Message(role="assistant", content="", tool_calls=(second,)),
            Message(role="user", content="and?"),
        ]
    )
    assert [(entry["role"], entry["content"], entry.get("tool_call_id")) for entry in chat] == [
        ("system", "s", None),
        ("user", "u", None),
        ("assistant", "", None),
        ("tool", "first", "call00000"),
        ("tool", "second", "call00001"),
        ("assistant", "{broken", None),
        ("user", "[tool]\nError: no JSON", None),
        ("assistant", "", None),
        ("tool", "", "call00002"),
        ("user", "and?", None),
    ]
    assert chat[2]["tool_calls"] == [
        {"id": "call00000", "type": "function", "function": {"name": "a", "arguments": '{"x": "ä"}'}},
        {"id": "call00001", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ]


def called(*ids: str | None) -> dict[str, Any]:
    """An answer's message with calls to a, b, ... under these ids."""
    calls = [a_call("abcdef"[place], "{}") | {"id": call_id} for place, call_id in enumerate(ids)]
    return {"tool_calls": calls}


def sent_ids(*turns: tuple[str | None, ...]) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """For each turn of calls under the endpoint's ids: the ids sent back, and each result with the id it answers."""
    conversation: list[Message] = []
    for turn, ids in enumerate(turns):
        conversation.append(read(content=None, message=called(*ids)))
        conversation += [Message(role="tool", content=f"{turn}.{place}") for place in range(len(ids))]
    chat = to_chat(conversation)
    sent = []
    for place, entry in enumerate(chat):
        if entry["role"] == "assistant":
            ids = [call["id"] for call in entry["tool_calls"]]
            answers = chat[place + 1 : place + 1 + len(ids)]
            sent.append((ids, [(answer["content"], answer["tool_call_id"]) for answer in answers]))
    return sent


def test_the_endpoints_ids_are_kept_and_each_result_answers_its_call() -> None:
    assert sent_ids(("x9FgTz001", "x9FgTz002"), ("x9FgTz003",)) == [
        (["x9FgTz001", "x9FgTz002"], [("0.0", "x9FgTz001"), ("0.1", "x9FgTz002")]),
        (["x9FgTz003"], [("1.0", "x9FgTz003")]),
    ]


@pytest.mark.parametrize("constant", ["same", "", None], ids=["one id for all", "empty", "none"])
def test_ids_that_are_not_unique_are_made_unique(constant: str | None) -> None:
    sent = sent_ids((constant, constant), (constant,))
    ids = [call_id for turn, _ in sent for call_id in turn]
    assert len(set(ids)) == 3
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in ids if call_id != constant)
    assert [answers for _, answers in sent] == [[("0.0", ids[0]), ("0.1", ids[1])], [("1.0", ids[2])]]


def test_a_made_up_id_is_never_the_endpoints() -> None:
    ids = [call_id for turn, _ in sent_ids(("call00001", None), ("call00000", None)) for call_id in turn]
    assert ids[:2] == ["call00001", "call00000"]
    assert len(set(ids)) == 4


def test_later_turns_do_not_change_the_ids_of_earlier_ones() -> None:
    assert sent_ids((None, "x"), ("x",), ("call00000",))[:2] == sent_ids((None, "x"), ("x",))


def test_opaque_fields_are_sent_back_as_they_came() -> None:
    sent = {
        "reasoning_content": "hm",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz"}],
        "thinking_blocks": [{"thinking": "hm", "signature": "s"}],
        "extra_content": {"google": {"thought_signature": "t"}},
    }
    call = a_call() | {"extra_content": {"google": {"thought_signature": "u"}}, "index": 0}
    unneeded = {"refusal": None, "annotations": [], "audio": None, "reasoning": None}
    message = read(content="a", message={**sent, **unneeded, "tool_calls": [call]})
    function = {"name": "search", "arguments": '{"query": "x"}'}
    again = {
        "id": "abc",
        "type": "function",
        "function": function,
        "extra_content": {"google": {"thought_signature": "u"}},
    }
    assert to_chat([message])[0] == {"role": "assistant", "content": "a", **sent, "tool_calls": [again]}


def test_opaque_fields_are_no_part_of_the_message() -> None:
    message = read(message={"reasoning_details": ["x"]})
    assert message == Message(role="assistant", content="hello")
    assert repr(message) == repr(Message(role="assistant", content="hello"))


def test_lone_surrogates_of_opaque_fields_are_replaced() -> None:
    [entry] = to_chat([read(message={"reasoning": "a\ud800b"})])
    assert entry["reasoning"] == "a?b"


def test_text_chunks_are_joined() -> None:
    chunks = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    message = read(content=chunks)
    assert message == Message(role="assistant", content="abc")
    assert to_chat([message]) == [{"role": "assistant", "content": "abc"}]


def test_thinking_chunks_are_thinking_and_are_sent_back() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "signature": "s"}
    content = [thinking, {"type": "text", "text": "yes"}, {"type": "image_url", "image_url": {"url": "x"}}]
    message = read(content=content)
    assert message == Message(role="assistant", content="yes", thinking="hm")
    assert to_chat([message]) == [{"role": "assistant", "content": content}]


@pytest.mark.parametrize("reason", ["because", "eos_token", "end_turn", "STOP", "tool_use"])
def test_a_whole_message_is_an_answer_under_any_finish_reason(reason: str) -> None:
    reply = read_reply(json.dumps(completion("done", finish_reason=reason)))
    assert (reply.message.content, reply.stop_reason) == ("done", "stop")


@pytest.mark.parametrize("reason", ["max_tokens", "model_length", "MAX_TOKENS"])
def test_other_words_for_a_cut_off_answer(reason: str) -> None:
    assert read_reply(json.dumps(completion("so", finish_reason=reason))).stop_reason == "length"


def test_lone_surrogates_are_replaced() -> None:
    assert to_chat([Message(role="user", content="a\ud800b")]) == [{"role": "user", "content": "a?b"}]


def test_tools_in_either_form() -> None:
    schema = {"name": "a", "description": "", "parameters": {}}
    wrapped = {"type": "function", "function": schema}
    assert to_tools([schema, wrapped]) == [wrapped, wrapped]


def test_a_tool_call_is_read() -> None:
    message = read(content=None, message={"tool_calls": [a_call(), a_call("b", "{}")]}, finish_reason="tool_calls")
    assert message == Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(name="search", arguments={"query": "x"}), ToolCall(name="b", arguments={})),
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"query": ', "is not valid JSON"),
        ("[1]", "must be an object"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": 1e999}', "holds a number that is too large"),
        ('{"a": 1, "a": 2}', "has the same key twice"),
        ('{"a": "\\ud800"}', "holds half of a surrogate pair"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "is nested too deeply"),
        ("[" * 100_000, "is nested too deeply"),
        ([1], "must be an object"),
        (3, "must be an object"),
        ({"a": float("nan")}, "holds NaN"),
        ({"a": "\ud800"}, "holds half of a surrogate pair"),
        ({"a": json.loads("[" * 400 + "]" * 400)}, "is nested too deeply"),
    ],
)
def test_malformed_arguments_are_the_models_mistake(arguments: Any, why: str) -> None:
    message = read(content="let me see", message={"tool_calls": [a_call(arguments=arguments)]})
    assert message.tool_calls == ()
    assert message.content == "let me see"
    assert message.malformed is not None
    assert why in message.malformed


@pytest.mark.parametrize(
    ("arguments", "read_as"),
    [
        (None, {}),
        ("", {}),
        (" ", {}),
        ("null", {}),
        ({}, {}),
        ({"query": "x"}, {"query": "x"}),
        ('{"query": "two\nlines\tand a tab"}', {"query": "two\nlines\tand a tab"}),
    ],
)
def test_arguments_in_the_forms_that_servers_send(arguments: Any, read_as: dict[str, Any]) -> None:
    message = read(content=None, message={"tool_calls": [a_call(arguments=arguments)]})
    assert message == Message(role="assistant", content="", tool_calls=(ToolCall(name="search", arguments=read_as),))


def test_a_call_without_arguments_has_none() -> None:
    call = {"id": "abc", "type": "function", "function": {"name": "search"}}
    assert read(content=None, message={"tool_calls": [call]}).tool_calls == (ToolCall(name="search", arguments={}),)


def test_each_call_is_read_by_itself() -> None:
    message = read(content=None, message={"tool_calls": [a_call(arguments="{"), a_call("b", "{}"), a_call("c", "[]")]})
    assert message.tool_calls == (ToolCall(name="b", arguments={}),)
    assert message.malformed is not None
    assert message.malformed.startswith("Call 1 of 3: The tool call is not valid JSON")
    assert message.malformed.endswith('Call 3 of 3: The "arguments" of the tool call must be an object.')
    assert '"name": "search"' in message.content
    assert '"name": "b"' not in message.content


def test_a_malformed_call_without_text_shows_what_was_called() -> None:
    assert '"name": "search"' in read(content=None, message={"tool_calls": [a_call(arguments="{")]}).content


@pytest.mark.parametrize(
    "changes",
    [
        {"content": 3},
        {"content": None},
        {"message": {"tool_calls": "x"}},
        {"message": {"tool_calls": [3]}},
        {"message": {"tool_calls": [a_call(name=None)]}},
        {"finish_reason": None},
        {"finish_reason": "error"},
        {"content": None, "finish_reason": "because"},
        {"content": [3]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": [{"type": "text", "text": "x"}]}]},
        {"message": {"reasoning_details": [float("nan")]}},
        {"choices": {}},
        {"choices": [3]},
        {"error": {"message": "overloaded"}},
    ],
)
def test_malformed_answers_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadReply):
        read(**changes)


@pytest.mark.parametrize("text", ["", "null", "3", "[]", "{}", "{" * 100_000])
def test_malformed_bodies_are_refused(text: str) -> None:
    with pytest.raises(BadReply):
        read_reply(text)


def test_stop_reasons_and_counts() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": -1}
    reply = read_reply(json.dumps(completion(finish_reason="length", usage=usage)))
    assert (reply.stop_reason, reply.prompt_tokens, reply.completion_tokens) == ("length", 5, None)
    with pytest.raises(FilteredReply):
        read_reply(json.dumps(completion(finish_reason="content_filter")))


def test_thinking_is_separated() -> None:
    expected = Message(role="assistant", content="yes", thinking="hm")
    assert read(content="yes", message={"reasoning_content": "hm"}) == expected
    assert read(content="<think>\nhm\n</think>\n\nyes") == expected
    assert read(content="hm\n</think>\n\nyes") == expected
    assert read(content="hm</think>yes", message={"reasoning_content": ""}) == expected
    assert read(content="a <think>hm</think> yes") == Message(role="assistant", content="yes", thinking="a hm")
    unended = Message(role="assistant", content="", malformed="The turn ended before its thinking did.", thinking="5")
    assert read(content="<think>5") == unended


def test_a_refusal_is_an_answer() -> None:
    assert read(content=None, message={"refusal": "I will not"}).content == "I will not"


@pytest.mark.parametrize(
    ("content", "more", "thinking"),
    [
        (None, {"reasoning_content": "hm"}, "hm"),
        ("", {"reasoning": "hm"}, "hm"),
        ("<think>\nhm", {}, "hm"),
        (None, {}, ""),
    ],
)
def test_spending_all_tokens_on_thinking_is_the_models_failure(
    content: str | None, more: dict[str, Any], thinking: str
) -> None:
    message = read(content=content, message=more, finish_reason="length")
    assert (message.content, message.tool_calls, message.thinking) == ("", (), thinking)
    assert message.malformed == "The turn was cut off before anything was said."


def test_a_truncated_text_is_kept() -> None:
    assert read(content="so far", finish_reason="length") == Message(role="assistant", content="so far")
    assert read(content="<think>hm</think>\nso", finish_reason="length").content == "so"
