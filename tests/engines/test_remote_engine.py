"""A remote model as an engine, and the ids of its conversations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from rti_exp.engines.base import (
    EngineUnavailable,
    EngineUnusable,
    GenerateRequest,
    RequestsFailed,
    Sampling,
    ScoreRequest,
)
from rti_exp.engines.failed_requests import generate_each
from rti_exp.engines.remote import ChatModel
from rti_exp.engines.remote.engine import RemoteEngine
from rti_exp.engines.remote.transcript import END, HEADERS, Transcript, messages_of
from rti_exp.rollout.renderer import Renderer
from rti_exp.types import Failure, FailureKind, Message
from tests.support.faulty_server import FaultyServer, completion

RENDERER: Renderer = Transcript()
SYSTEM = Message(role="system", content="be kind")
USER = Message(role="user", content="hé\U0001f600")


def test_a_character_is_an_id() -> None:
    assert RENDERER.opening([USER], ()) == (HEADERS["user"], ord("h"), 0xE9, 0x1F600, END, HEADERS["assistant"])
    assert RENDERER.action_ids("ab") == (97, 98, END)
    assert RENDERER.appended([], closed=False) == (END, HEADERS["assistant"])
    assert RENDERER.message((32, 97, 10, END)) == Message(role="assistant", content="a")
    assert min(HEADERS.values()) > END > 0x10FFFF  # beyond what any text can hold


def test_prompts_can_be_read_back_as_messages() -> None:
    ids = RENDERER.opening([SYSTEM, USER], [{"name": "f", "description": "é"}])
    ids += RENDERER.action_ids('{"name": "f"}')
    ids += RENDERER.appended([Message(role="tool", content="done")], closed=True)
    ids += (ord("o"), ord("k"))  # cut off
    ids += RENDERER.appended([Message(role="system", content="judge!")], closed=False)
    assert messages_of(ids) == [
        Message(role="system", content='be kind\n\nTools:\n{"name": "f", "description": "é"}'),
        USER,
        Message(role="assistant", content='{"name": "f"}'),
        Message(role="user", content="[tool result]\ndone"),
        Message(role="assistant", content="ok"),
        Message(role="user", content="judge!"),
    ]


def test_consecutive_messages_of_a_role_are_joined() -> None:
    ids = RENDERER.opening([USER], ()) + RENDERER.action_ids("x")
    ids += RENDERER.appended(
        [Message(role="tool", content="1"), Message(role="tool", content="2"), Message(role="system", content="s")],
        closed=True,
    )
    assert messages_of(ids)[-1].content == "[tool result]\n1\n\n[tool result]\n2\n\ns"


def test_lone_surrogates_become_question_marks() -> None:
    assert RENDERER.action_ids("\ud800") == (ord("?"), END)


def test_ids_without_an_assistant_header_are_refused() -> None:
    with pytest.raises(ValueError, match="header of an assistant turn"):
        messages_of(RENDERER.action_ids("x"))


def engine_of(server: FaultyServer) -> RemoteEngine:
    pytest.importorskip("openai", reason="the extra `remote` is not installed")
    return RemoteEngine(ChatModel(server.settings()))


def requests(*texts: str) -> Sequence[GenerateRequest]:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, stop_ids=(END,))
    return [
        GenerateRequest(
            prompt_ids=RENDERER.opening([Message(role="user", content=text)], ()), sampling=sampling, seed=place
        )
        for place, text in enumerate(texts)
    ]


def test_completions_hold_the_answers() -> None:
    def answer(body: dict[str, Any]) -> Any:
        asked = body["messages"][0]["content"]
        return completion(asked.upper(), finish_reason="length" if asked == "b" else "stop")

    with FaultyServer(answer=answer) as server:
        engine = engine_of(server)
        first, second = engine.generate(requests("a", "b"))
    assert (first.token_ids, first.stop_reason) == ((65, END), "stop")
    assert (second.token_ids, second.stop_reason) == ((66,), "length")
    assert all(math.isnan(value) for value in (*first.log_probs, *second.log_probs))
    assert len(first.log_probs) == 2
    assert engine.generated_tokens == 6  # as the endpoint reported
    sent = next(body for body in server.requests if body["messages"][0]["content"] == "b")
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"], sent["seed"]) == (0.5, 0.9, 7, 1)


def test_a_lost_request_leaves_the_others() -> None:
    with FaultyServer(lambda body: "400" if body["messages"][0]["content"] == "b" else "ok") as server:
        engine = engine_of(server)
        with pytest.raises(RequestsFailed) as caught:
            engine.generate(requests("a", "b", "c"))
        assert set(caught.value.answered) == {0, 2}
        failure = Failure(kind=FailureKind.UNAVAILABLE, reason="rejected: status 400: no such role")
        assert caught.value.failures == {1: failure}
        first, lost, third = generate_each(engine, requests("a", "b", "c"))
    assert first == third == caught.value.answered[0]
    assert lost == failure


def test_the_engine_is_unavailable_if_all_requests_are_lost() -> None:
    with FaultyServer(["500"]) as server:
        with pytest.raises(EngineUnavailable, match=r"^server_error: status 500: out of order$") as caught:
            engine_of(server).generate(requests("a", "b"))
        assert not isinstance(caught.value, RequestsFailed)


def test_requests_that_are_too_long_are_failures_of_their_own_kind_and_no_outage() -> None:
    with FaultyServer(["too_long"]) as server:
        [lost] = generate_each(engine_of(server), requests("a"))
    assert isinstance(lost, Failure)
    assert lost.kind is FailureKind.TOO_LONG


def test_scoring_is_refused() -> None:
    with FaultyServer() as server, pytest.raises(EngineUnusable, match=r"reweight\.scorer must be policy or off"):
        engine_of(server).score([ScoreRequest(prompt_ids=(1,), token_ids=(2,))])


def test_prompts_of_another_renderer_are_refused() -> None:
    request = GenerateRequest(prompt_ids=(1,), sampling=Sampling(stop_ids=(2,)), seed=0)
    with FaultyServer() as server, pytest.raises(ValueError, match="Transcript"):
        engine_of(server).generate([request])
