"""An OpenAI-compatible server on loopback that misbehaves on request.

    with FaultyServer(["500", "ok"]) as server:      # a status 500 first, then good answers
        settings = server.settings(attempts=3)

A script is a list of faults, one per request, of which the last repeats; or a function from a body to a fault. A fault
is "ok" (the answer is `answer(body)`), a key of `ANSWERS` or `REFUSALS`, the name of a `Handler` method, or a status
with a body of your own.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.engines.remote import ChatRequest
from rti_exp.types import Message

MODEL = "teacher"
Answer = Callable[[dict[str, Any]], Any]
Fault = str | tuple[int, Any]


def completion(content: str | None = "hello", **changes: Any) -> dict[str, Any]:
    """A complete answer with 7 prompt tokens and 3 completion tokens."""
    message = {"role": "assistant", "content": content, **changes.pop("message", {})}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": changes.pop("finish_reason", "stop")}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        **changes,
    }


ANSWERS: dict[str, Any] = {
    "list": [1, 2],
    "no_choices": completion() | {"choices": []},
    "no_message": completion() | {"choices": [{"finish_reason": "stop"}]},
    "unfinished": completion(finish_reason=None),
    "other_model": completion(model="another"),
    "snapshot": completion(model=f"{MODEL}-2026-01-31"),
}
"""Fault -> the body of an answer with status 200."""
REFUSALS = {
    "500": (500, "out of order", ""),
    "429": (429, "slow down", ""),
    "429_wait": (429, "slow down", "0.3"),
    "429_long": (429, "slow down", "3600"),
    "429_quota": (429, "insufficient_quota: no credit left", ""),
    "400": (400, "no such role", ""),
    "too_long": (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.", ""),
    "401": (401, "wrong key: {key}", ""),
    "403": (403, "this key may not do that", ""),
    "404": (404, "no such model", ""),
}
"""Fault -> (status, message, Retry-After)."""


class FaultyServer:
    """`requests` are the bodies received, with `headers` (names in lower case) and `times`; `most` ran at once."""

    def __init__(
        self, script: Sequence[Fault] | Callable[[dict[str, Any]], Fault] = ("ok",), answer: Answer | None = None
    ):
        self.script = script
        self.answer = answer or (lambda body: completion())
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.now = self.most = 0
        self.slow = 0.0
        self.closing = threading.Event()
        self._lock = threading.Lock()
        owner = self

        class Bound(Handler):
            server_state = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> Fault:
        with self._lock:
            place = len(self.requests)
            self.requests.append(body)
            self.headers.append(headers)
            self.times.append(time.monotonic())
        if callable(self.script):
            return self.script(body)
        return self.script[min(place, len(self.script) - 1)]

    @contextlib.contextmanager
    def counted(self) -> Any:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def settings(self, **changes: Any) -> RemoteSettings:
        """Settings with short time limits."""
        short = {
            "connect_seconds": 1.0,
            "read_seconds": 0.6,
            "total_seconds": 1.2,
            "patience_seconds": 6.0,
            "first_wait_seconds": 0.01,
            "max_wait_seconds": 0.5,
            "attempts": 3,
            "cache": None,
        }
        return default_settings(RemoteSettings, base_url=self.base_url, model=MODEL, **{**short, **changes})


class Handler(BaseHTTPRequestHandler):
    server_state: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = state.take(body, {key.lower(): value for key, value in self.headers.items()})
        with state.counted(), contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if fault == "ok":
                time.sleep(state.slow)
                self.send(json.dumps(state.answer(body)))
            elif isinstance(fault, tuple):
                self.send(json.dumps(fault[1]), fault[0])
            elif fault in ANSWERS:
                self.send(json.dumps(ANSWERS[fault]))
            elif fault in REFUSALS:
                status, message, wait = REFUSALS[fault]
                message = message.format(key=self.headers.get("Authorization"))
                self.send(json.dumps({"error": {"message": message, "type": "test"}}), status, wait=wait)
            else:
                getattr(self, fault)()

    def send(self, text: str, status: int = 200, *, length: int | None = None, wait: str = "") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        if wait:
            self.send_header("Retry-After", wait)
        self.end_headers()
        self.wfile.write(data)

    def page(self) -> None:
        self.send("<html>Bad gateway</html>")

    def hang(self) -> None:
        self.server_state.closing.wait(30)
        self.close_connection = True

    def drip(self) -> None:
        """Sends a byte now and then: never silent for long, never done."""
        self.send("", length=10_000)
        self._send_until_closed(b" ")

    def drip_headers(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        self._send_until_closed(b"x")

    def _send_until_closed(self, data: bytes) -> None:
        while not self.server_state.closing.wait(0.05):
            self.wfile.write(data)
            self.wfile.flush()
        self.close_connection = True

    def half(self) -> None:
        """Closes the connection in the middle of the answer."""
        text = json.dumps(completion())
        self.send(text[: len(text) // 2], length=len(text))
        self.close_connection = True

    def reset(self) -> None:
        self.close_connection = True
        self.connection.close()


HELLO = [Message(role="user", content="hi")]


def asked(*texts: str) -> list[ChatRequest]:
    return [ChatRequest(messages=[Message(role="user", content=text)]) for text in texts]
