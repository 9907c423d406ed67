"""The client of remote models, against a server on loopback that misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `remote` is not installed")

from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.remote import Cause, ChatModel, RemoteDown, RemoteFailure
from rti_exp.types import Message
from tests.support.faulty_server import HELLO, MODEL, FaultyServer, completion


def test_an_answer_and_its_usage() -> None:
    with FaultyServer() as server:
        model = ChatModel(server.settings(extra={"chat_template_kwargs": {"a": 1}}))
        reply = model.reply(HELLO, temperature=0.5, max_tokens=9, seed=2**40 + 5)
    assert reply.message == Message(role="assistant", content="hello")
    assert (reply.stop_reason, reply.model, reply.from_cache) == ("stop", MODEL, False)
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
    assert server.requests == [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.5,
            "top_p": 1.0,
            "max_tokens": 9,
            "seed": (2**40 + 5) % 2**31,
            "chat_template_kwargs": {"a": 1},
        }
    ]
    usage = model.usage
    assert (usage.answered, usage.tries, usage.lost, usage.prompt_tokens, usage.completion_tokens) == (1, 1, 0, 7, 3)


def test_the_limits_name_and_omitted_parameters() -> None:
    with FaultyServer() as server:
        settings = server.settings(max_tokens_key="max_completion_tokens", send_seed=False, send_temperature=False)
        ChatModel(settings).reply(HELLO, max_tokens=9, seed=1, temperature=1.0)
    assert server.requests[0].keys() == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("fault", "cause", "tries", "detail"),
    [
        ("500", Cause.SERVER_ERROR, 3, "status 500: out of order"),
        ("429", Cause.RATE_LIMIT, 3, "status 429: slow down"),
        ("429_wait", Cause.RATE_LIMIT, 3, "slow down"),
        ("429_long", Cause.RATE_LIMIT, 1, "slow down"),
        ("429_quota", Cause.QUOTA, 1, "no credit left"),
        ("400", Cause.REJECTED, 1, "status 400: no such role"),
        ("too_long", Cause.TOO_LONG, 1, "maximum context length is 4096"),
        ("hang", Cause.TIMEOUT, 3, "ReadTimeout"),
        ("drip", Cause.TIMEOUT, 3, "no complete answer within 1.2 s"),
        ("drip_headers", Cause.TIMEOUT, 3, "no complete answer within 1.2 s"),
        ("half", Cause.CONNECTION, 3, "without sending complete message body"),
        ("reset", Cause.CONNECTION, 3, "RemoteProtocolError"),
        ("page", Cause.BAD_REPLY, 3, "the answer is not JSON"),
        ("list", Cause.BAD_REPLY, 3, "not an object"),
        ("no_choices", Cause.BAD_REPLY, 3, "no choices"),
        ("no_message", Cause.BAD_REPLY, 3, "no message"),
        ("unfinished", Cause.BAD_REPLY, 3, "finish_reason is 'None'"),
        ("other_model", Cause.WRONG_MODEL, 1, "'another' answered instead of 'teacher'"),
    ],
)
def test_each_fault_has_a_cause_and_a_bounded_number_of_tries(
    fault: str, cause: Cause, tries: int, detail: str
) -> None:
    with FaultyServer([fault]) as server:
        model = ChatModel(server.settings())
        started = time.monotonic()
        with pytest.raises(RemoteFailure, match=cause.value) as caught:
            model.reply(HELLO)
        seconds = time.monotonic() - started
    assert caught.value.cause is cause
    assert detail in str(caught.value)
    assert len(server.requests) == tries == model.usage.tries
    assert model.usage.lost_by_cause == {cause: 1}
    assert seconds < 7.0  # patience_seconds and some overhead


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"message": "Your input exceeds it.", "code": "context_length_exceeded", "type": "invalid"}}),
        (400, {"error": {"message": "[{'role': ...", "code": "string_above_max_length", "type": "invalid"}}),
        (
            400,  # vLLM, several versions
            {"object": "error", "message": "The decoder prompt (length 5000) is longer than the maximum model length"},
        ),
        (400, {"error": {"message": "This model's maximum context length is 4096 tokens.", "code": 400}}),
        (400, {"object": "error", "message": "The input (9 tokens) is longer than the model's context length (8)."}),
        (
            400,  # llama.cpp
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available size, try increasing it",
                    "type": "exceed_context_size_error",
                    "n_ctx": 4096,
                }
            },
        ),
        (500, {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}),
        (
            422,  # TGI
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
                "error_type": "validation",
            },
        ),
        (422, {"error": "`inputs` must have less than 1024 tokens. Given: 2000", "error_type": "validation"}),
        (400, {"error": "prompt too long; exceeded max context length by 12 tokens"}),  # Ollama
        (500, {"error": {"message": "the input length exceeds the context length", "type": "api_error"}}),
        (400, {"error": {"message": "prompt is too long: 209000 tokens > 200000 maximum", "type": "invalid"}}),
        (400, {"error": {"message": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"}}),
        (400, [{"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}}]),
        (400, {"error": {"message": "litellm.ContextWindowExceededError: no more", "type": None}}),
        (413, {"detail": "Request Entity Too Large"}),
        (200, {"error": {"message": "This endpoint's maximum context length is 4096 tokens.", "code": 400}}),
    ],
)
def test_a_conversation_that_is_too_long_is_recognised_in_each_servers_words(status: int, body: Any) -> None:
    with FaultyServer([(status, body)]) as server:
        with pytest.raises(RemoteFailure) as caught:
            ChatModel(server.settings()).reply(HELLO)
        assert caught.value.cause is Cause.TOO_LONG
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (
            422,  # FastAPI repeats the request, whose text says anything
            {"detail": [{"loc": ["body", "n"], "msg": "Input should be 1", "input": "my context window is too long"}]},
            Cause.REJECTED,
        ),
        (413, {"error": {"message": "tokens per minute: Limit 6000", "code": "rate_limit_exceeded"}}, Cause.REJECTED),
        (429, {"error": {"message": "too many tokens per minute"}}, Cause.RATE_LIMIT),
        (400, {"error": {"message": "max_tokens is too large: 9. This model supports at most 8"}}, Cause.REJECTED),
    ],
)
def test_other_refusals_are_not_a_conversation_that_is_too_long(status: int, body: Any, cause: Cause) -> None:
    with FaultyServer([(status, body)]) as server, pytest.raises(RemoteFailure) as caught:
        ChatModel(server.settings(attempts=1)).reply(HELLO)
    assert caught.value.cause is cause


OPENAI_REFUSES_THE_LIMIT = {
    "error": {
        "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
        "instead.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "unsupported_parameter",
    }
}


@pytest.mark.parametrize(
    ("status", "body", "remedy"),
    [
        (400, OPENAI_REFUSES_THE_LIMIT, "max_tokens_key=max_completion_tokens"),
        (
            400,
            {
                "error": {
                    "message": "Unsupported value: 'temperature' does not support 0.0 with this model. Only the "
                    "default (1) value is supported.",
                    "param": "temperature",
                    "code": "unsupported_value",
                }
            },
            "send_temperature=false",
        ),
        (400, {"error": {"message": "`temperature` and `top_p` cannot both be specified"}}, "send_temperature=false"),
        (
            422,
            {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
            "send_seed=false",
        ),
    ],
)
def test_the_error_names_the_setting_for_a_parameter_that_the_endpoint_refuses(
    status: int, body: Any, remedy: str
) -> None:
    with FaultyServer([(status, body)]) as server:
        model = ChatModel(server.settings(), key="corrector.remote")
        with pytest.raises(RemoteDown, match=f"refuses every request .*; set corrector.remote.{remedy}"):
            model.reply(HELLO, seed=1)
    assert len(server.requests) == 1


def test_a_parameter_refused_after_an_answer_costs_requests_only() -> None:
    with FaultyServer(["ok", (400, OPENAI_REFUSES_THE_LIMIT)]) as server:
        model = ChatModel(server.settings(), key="policy.remote")
        model.reply(HELLO)
        with pytest.raises(RemoteFailure, match=r"policy\.remote\.max_tokens_key=max_completion_tokens"):
            model.reply(HELLO)
    assert model.usage.lost_by_cause == {Cause.PARAMETER: 1}


@pytest.mark.parametrize("fault", ["500", "429", "429_wait", "hang", "drip", "half", "reset", "page", "no_choices"])
def test_transient_faults_are_retried(fault: str) -> None:
    with FaultyServer([fault, "ok"]) as server:
        assert ChatModel(server.settings()).reply(HELLO).message.content == "hello"
    assert len(server.requests) == 2
    assert server.requests[0] == server.requests[1]


def test_a_refused_connection() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # never listens: connections are refused
        settings = default_settings(
            RemoteSettings,
            base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1",
            model="m",
            first_wait_seconds=0.01,
            attempts=2,
        )
        with pytest.raises(RemoteFailure, match="connection: ConnectError"):
            ChatModel(settings).reply(HELLO)


@pytest.mark.parametrize(("fault", "status"), [("401", 401), ("404", 404)])
def test_a_wrong_key_or_model_ends_the_job_at_once(fault: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "marker-secret")
    with FaultyServer([fault]) as server:
        model = ChatModel(server.settings(api_key="TEACHER_KEY"), key="corrector.remote")
        with pytest.raises(RemoteDown, match=f"status {status}.*corrector.remote.api_key.*TEACHER_KEY") as caught:
            model.reply(HELLO)
    assert "marker-secret" not in str(caught.value)
    assert server.headers[0]["authorization"] == "Bearer marker-secret"


def test_access_denied_after_an_answer_costs_requests_only() -> None:
    with FaultyServer(["ok", "401"]) as server:
        model = ChatModel(server.settings())
        model.reply(HELLO)
        with pytest.raises(RemoteFailure, match="no_access"):
            model.reply(HELLO)


def test_a_key_that_the_config_does_not_name_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "marker-secret")
    with FaultyServer() as server:
        ChatModel(server.settings()).reply(HELLO)
    assert "marker-secret" not in json.dumps(server.headers)
    assert "authorization" not in server.headers[0]


def test_the_error_names_the_variable_of_a_missing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(SettingsError, match=r"policy\.remote\.api_key='NO_SUCH_KEY': the environment variable"):
        ChatModel(default_settings(RemoteSettings, model="m", api_key="NO_SUCH_KEY", cache=None), key="policy.remote")


def test_a_key_repeated_by_the_server_reaches_neither_the_answer_nor_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEACHER_KEY", "marker-secret")
    with FaultyServer(answer=lambda body: completion("your key is marker-secret")) as server:
        model = ChatModel(server.settings(api_key="TEACHER_KEY", cache=str(tmp_path)))
        assert model.reply(HELLO).message.content == "your key is [secret]"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    assert "marker-secret" not in files[0].read_text()


def test_answers_without_token_counts_are_counted() -> None:
    with FaultyServer(answer=lambda body: completion(usage=None)) as server:
        model = ChatModel(server.settings())
        assert model.reply(HELLO).completion_tokens is None
    assert (model.usage.without_counts, model.usage.completion_tokens) == (1, 0)


@pytest.mark.parametrize(
    ("answers_as", "fault", "name"),
    [("another", "other_model", "another"), ("*", "other_model", "another"), (None, "snapshot", "teacher-2026-01-31")],
)
def test_accepted_model_names(answers_as: str | None, fault: str, name: str) -> None:
    with FaultyServer([fault]) as server:
        assert ChatModel(server.settings(answers_as=answers_as)).reply(HELLO).model == name


def test_an_answer_that_names_no_model_is_no_other_models() -> None:
    for nameless in ({"model": None}, {"model": ""}):
        with FaultyServer(answer=lambda body, nameless=nameless: completion(**nameless)) as server:
            assert ChatModel(server.settings(answers_as="exactly this")).reply(HELLO).message.content == "hello"


def test_threads_share_a_model() -> None:
    with FaultyServer(answer=lambda body: completion(body["messages"][0]["content"])) as server:
        model = ChatModel(server.settings(concurrency=4))
        answers: dict[int, str] = {}

        def ask(number: int) -> None:
            answers[number] = model.reply([Message(role="user", content=str(number))]).message.content

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
    assert answers == {number: str(number) for number in range(12)}
    assert model.usage.answered == 12


def test_back_off_leaves_the_global_generator_alone() -> None:
    import random

    random.seed(5)
    expected = random.Random(5).random()
    with FaultyServer(["500", "ok"]) as server:
        ChatModel(server.settings()).reply(HELLO)
    assert random.random() == expected


@pytest.mark.parametrize(
    ("answered", "accepted"),
    [
        ("gpt-4", True),
        ("gpt-4-0613", True),
        ("gpt-4-2024-08-06", True),
        ("gpt-4-20240806", True),
        ("gpt-4-turbo", False),
        ("gpt-4o", False),
        ("gpt-41", False),
    ],
)
def test_a_date_after_the_name_is_the_same_model_and_another_word_is_not(answered: str, accepted: bool) -> None:
    settings = default_settings(RemoteSettings, base_url="http://127.0.0.1:1/v1", model="gpt-4", cache=None)
    assert settings.accepts(answered) is accepted
