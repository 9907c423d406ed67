"""Pace, patience and the failure rate of a remote model's requests."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

pytest.importorskip("openai", reason="the extra `remote` is not installed")

from rti_exp.engines.remote import Cause, ChatModel, RemoteDown, RemoteFailure, Reply
from rti_exp.engines.remote.failures import retry_after
from tests.support.faulty_server import HELLO, FaultyServer, asked, completion


def test_retry_after_pauses_all_requests() -> None:
    with FaultyServer(["429_wait", "ok"]) as server:
        model = ChatModel(server.settings(concurrency=1, read_seconds=5.0, total_seconds=5.0))
        model.replies(asked("a", "b"))
    assert server.times[1] - server.times[0] >= 0.3
    assert len(server.requests) == 3


def test_retry_after_in_every_form() -> None:
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)}) == pytest.approx(100, abs=2)
    assert retry_after({"retry-after": "-3"}) == 0.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({}) is None


def test_concurrency_is_limited_and_answers_keep_their_order() -> None:
    with FaultyServer(answer=lambda body: completion(body["messages"][0]["content"].upper())) as server:
        server.slow = 0.05
        model = ChatModel(server.settings(concurrency=3))
        replies = model.replies(asked(*"abcdefgh"))
    assert [reply.message.content for reply in replies if isinstance(reply, Reply)] == list("ABCDEFGH")
    assert server.most == 3


def test_requests_per_minute_are_limited() -> None:
    with FaultyServer() as server:
        # Ten a second. The queue takes longer than the patience, which must not count it.
        settings = server.settings(requests_per_minute=600.0, concurrency=8, patience_seconds=0.3, total_seconds=0.2)
        replies = ChatModel(settings).replies(asked(*"abcdefgh"))
    assert all(isinstance(reply, Reply) for reply in replies)
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    assert sum(waits) > 0.65


def test_an_endpoint_that_is_down_costs_the_patience_of_few_requests() -> None:
    with FaultyServer(["hang"]) as server:
        model = ChatModel(server.settings(concurrency=2, attempts=2))
        started = time.monotonic()
        lost = model.replies(asked(*(str(number) for number in range(40))))
        seconds = time.monotonic() - started
    assert seconds < 8.0  # 40 requests of 2 * 0.6 s two at a time would be 24 s
    causes = [failure.cause for failure in lost if isinstance(failure, RemoteFailure)]
    assert causes.count(Cause.TIMEOUT) in (2, 3)
    assert causes.count(Cause.DOWN) == 40 - causes.count(Cause.TIMEOUT)
    assert "not sent, because the endpoint is down (timeout:" in str(lost[-1])


def test_an_endpoint_that_comes_back_is_used_again() -> None:
    with FaultyServer(["500", "500", "500", "ok"]) as server:
        model = ChatModel(server.settings(concurrency=1, attempts=2, max_wait_seconds=0.2))
        first, second = model.replies(asked("a", "b"))
        assert isinstance(first, RemoteFailure)
        assert isinstance(second, RemoteFailure)
        assert second.cause is Cause.DOWN
        time.sleep(0.25)
        (third,) = model.replies(asked("c"))  # a single try, and the endpoint is still down
        assert isinstance(third, RemoteFailure)
        assert third.cause is Cause.SERVER_ERROR
        assert len(server.requests) == 3
        time.sleep(0.25)
        assert all(isinstance(reply, Reply) for reply in model.replies(asked("d", "e", "f")))


def test_a_failure_rate_above_the_limit_ends_the_job() -> None:
    with FaultyServer(["ok", "ok", "400", "ok", "400", "400", "400"]) as server:
        model = ChatModel(server.settings(max_failure_rate=0.5, failure_window=4, concurrency=1))
        for place in range(6):  # after the fifth, 2 of the last 4 are lost: not more than half
            if place in (2, 4):
                assert isinstance(model.replies(asked("x"))[0], RemoteFailure)
            elif place == 5:
                with pytest.raises(RemoteDown, match=r"3 of the last 4 requests are lost, more than .*=0\.5"):
                    model.reply(HELLO)
            else:
                model.reply(HELLO)


def test_without_a_limit_on_the_failure_rate_the_job_continues() -> None:
    with FaultyServer(["400"]) as server:
        model = ChatModel(server.settings(failure_window=2))
        assert all(isinstance(reply, RemoteFailure) for reply in model.replies(asked(*"abcdefgh")))
