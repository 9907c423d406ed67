"""An OpenAI-compatible server on loopback that misbehaves as told.

    with FaultyServer(["500", "ok"]) as server:      # first answer status 500, then well
        settings = server.settings(attempts=3)

A script is a list of names of `Handler` methods, taken in the order of requests, the last one again and again; or a
function of the request's body that gives such a name. What it answers well is `answer(body)`.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rti_exp.config.remote_settings import RemoteSettings

MODEL = "teacher"
Answer = Callable[[dict[str, Any]], Any]


def completion(content: str | None = "hello", **changes: Any) -> dict[str, Any]:
    """A whole answer; 7 prompt tokens, 3 completion tokens."""
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


class FaultyServer:
    """`requests` are the bodies it was sent, `headers` came with them (names in small letters), `times` is when.

    `most` of them were under way at once.
    """

    def __init__(self, script: Sequence[str] | Callable[[dict[str, Any]], str] = ("ok",), answer: Answer | None = None):
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

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> str:
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
        """Impatient ones."""
        quick = {
            "connect_seconds": 1.0,
            "read_seconds": 0.6,
            "total_seconds": 1.2,
            "patience_seconds": 6.0,
            "first_wait_seconds": 0.01,
            "max_wait_seconds": 0.5,
            "attempts": 3,
        }
        return RemoteSettings(base_url=self.base_url, model=MODEL, **{**quick, **changes})


class Handler(BaseHTTPRequestHandler):
    server_state: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.server_state.take(body, {key.lower(): value for key, value in self.headers.items()})
        with self.server_state.counted(), contextlib.suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, f"do_{name}")(body)

    def send(self, text: str, status: int = 200, *, length: int | None = None, wait: str = "") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data) if length is None else length))
        if wait:
            self.send_header("Retry-After", wait)
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, message: str, wait: str = "") -> None:
        self.send(json.dumps({"error": {"message": message, "type": "test"}}), status, wait=wait)

    def do_ok(self, body: dict[str, Any]) -> None:
        time.sleep(self.server_state.slow)
        self.send(json.dumps(self.server_state.answer(body)))

    def do_500(self, body: dict[str, Any]) -> None:
        self.refuse(500, "out of order")

    def do_429(self, body: dict[str, Any]) -> None:
        self.refuse(429, "slow down")

    def do_429_wait(self, body: dict[str, Any]) -> None:
        self.refuse(429, "slow down", wait="0.3")

    def do_429_long(self, body: dict[str, Any]) -> None:
        self.refuse(429, "slow down", wait="3600")

    def do_429_quota(self, body: dict[str, Any]) -> None:
        self.refuse(429, "insufficient_quota: no credit left")

    def do_400(self, body: dict[str, Any]) -> None:
        self.refuse(400, "this prompt is too long")

    def do_too_long(self, body: dict[str, Any]) -> None:
        self.refuse(400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.")

    def do_401(self, body: dict[str, Any]) -> None:
        self.refuse(401, f"wrong key: {self.headers.get('Authorization')}")

    def do_403(self, body: dict[str, Any]) -> None:
        self.refuse(403, "this key may not do that")

    def do_404(self, body: dict[str, Any]) -> None:
        self.refuse(404, "no such model")

    def do_hang(self, body: dict[str, Any]) -> None:
        self.server_state.closing.wait(30)
        self.close_connection = True

    def do_drip(self, body: dict[str, Any]) -> None:
        """A byte now and then: never silent for long, never done."""
        self.send("", length=10_000)
        while not self.server_state.closing.wait(0.05):
            self.wfile.write(b" ")
            self.wfile.flush()
        self.close_connection = True

    def do_drip_headers(self, body: dict[str, Any]) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self.server_state.closing.wait(0.05):
            self.wfile.write(b"x")
            self.wfile.flush()
        self.close_connection = True

    def do_half(self, body: dict[str, Any]) -> None:
        """Breaks off in the middle of the answer."""
        text = json.dumps(completion())
        self.send(text[: len(text) // 2], length=len(text))
        self.close_connection = True

    def do_reset(self, body: dict[str, Any]) -> None:
        self.close_connection = True
        self.connection.close()

    def do_page(self, body: dict[str, Any]) -> None:
        self.send("<html>Bad gateway</html>")

    def do_list(self, body: dict[str, Any]) -> None:
        self.send("[1, 2]")

    def do_no_choices(self, body: dict[str, Any]) -> None:
        self.send(json.dumps(completion() | {"choices": []}))

    def do_no_message(self, body: dict[str, Any]) -> None:
        self.send(json.dumps(completion() | {"choices": [{"finish_reason": "stop"}]}))

    def do_unfinished(self, body: dict[str, Any]) -> None:
        self.send(json.dumps(completion(finish_reason=None)))

    def do_other_model(self, body: dict[str, Any]) -> None:
        self.send(json.dumps(completion(model="another")))

    def do_snapshot(self, body: dict[str, Any]) -> None:
        self.send(json.dumps(completion(model=f"{MODEL}-2026-01-31")))
