"""The cache of a remote model's answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the extra `remote` is not installed")

from rti_exp.engines.remote import ChatModel, RemoteFailure
from tests.support.faulty_server import HELLO, FaultyServer


def test_answers_are_cached(tmp_path: Path) -> None:
    cached = {"cache": str(tmp_path), "send_seed": False}
    with FaultyServer() as server:
        first = ChatModel(server.settings(**cached)).reply(HELLO, seed=1)
        model = ChatModel(server.settings(**cached))
        again = model.reply(HELLO, seed=1)
        assert again.message == first.message
        assert again.from_cache
        assert len(server.requests) == 1
        assert (model.usage.completion_tokens, model.usage.from_cache, model.usage.tries) == (3, 1, 0)
        model.reply(HELLO, seed=2)  # another draw, although the server is sent the same request
        model.reply(HELLO, seed=1, temperature=0.5)
        assert len(server.requests) == 3


def test_lost_requests_are_not_cached(tmp_path: Path) -> None:
    with FaultyServer(["400", "ok"]) as server:
        model = ChatModel(server.settings(cache=str(tmp_path)))
        with pytest.raises(RemoteFailure):
            model.reply(HELLO)
        assert not model.reply(HELLO).from_cache


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps({"request": {"body": "another"}, "reply": "x"}),
        lambda text: json.dumps({**json.loads(text), "reply": "{}"}),
        lambda text: json.dumps({**json.loads(text), "reply": 3}),
    ],
    ids=["cut off", "not an object", "another request's", "not an answer", "not text"],
)
def test_the_endpoint_is_asked_again_for_a_damaged_cache_file(tmp_path: Path, damage: Any) -> None:
    with FaultyServer() as server:
        model = ChatModel(server.settings(cache=str(tmp_path)))
        model.reply(HELLO)
        (path,) = tmp_path.rglob("*.json")
        path.write_text(damage(path.read_text()))
        with pytest.warns(UserWarning, match="asked again"):
            assert model.reply(HELLO).message.content == "hello"
        assert len(server.requests) == 2
        assert model.reply(HELLO).from_cache
