"""The proxies of the environment: local hosts need none, and one that cannot be used is named."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

pytest.importorskip("openai", reason="the extra `remote` is not installed")

from rti_exp.config.defaults import default_settings
from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.config.settings import SettingsError
from rti_exp.engines.remote import ChatModel, RemoteFailure
from rti_exp.types import Message
from tests.support.faulty_server import MODEL, FaultyServer

HELLO = [Message(role="user", content="hi")]
ELSEWHERE = "http://endpoint.invalid/v1"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme.upper()}_PROXY", raising=False)


@contextlib.contextmanager
def socks_proxy(port: int) -> Iterator[tuple[str, list[str]]]:
    """A SOCKS5 proxy on loopback that takes every host for this machine's `port`; its address, and the hosts asked."""
    hosts: list[str] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            with client, socket.create_connection(("127.0.0.1", port)) as server:
                client.recv(262)
                client.sendall(b"\x05\x00")
                hosts.append(client.recv(262)[5:-2].decode())
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                threading.Thread(target=pump, args=(server, client), daemon=True).start()
                pump(client, server)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield f"socks5://127.0.0.1:{listener.getsockname()[1]}", hosts


def test_an_endpoint_is_reached_through_a_socks_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("socksio", reason="the extra `remote` is not installed")
    with FaultyServer() as server:
        port = urllib.parse.urlsplit(server.base_url).port
        assert port is not None
        with socks_proxy(port) as (address, hosts):
            monkeypatch.setenv("ALL_PROXY", address)
            elsewhere = default_settings(
                RemoteSettings, cache=None, base_url=ELSEWHERE, model=MODEL, attempts=1, read_seconds=5.0
            )
            assert ChatModel(elsewhere).reply(HELLO).message.content == "hello"
    assert hosts == ["endpoint.invalid"]


@pytest.mark.parametrize("variable", ["ALL_PROXY", "http_proxy"])
def test_a_host_of_this_machine_needs_no_proxy(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "socks5://127.0.0.1:1")
    with FaultyServer() as server:
        assert ChatModel(server.settings()).reply(HELLO).message.content == "hello"


@pytest.mark.parametrize("hosts", ["endpoint.invalid", ".invalid", "*"])
def test_a_host_in_no_proxy_needs_no_proxy(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks4://127.0.0.1:1")  # which cannot be used at all
    monkeypatch.setenv("NO_PROXY", hosts)
    with pytest.raises(RemoteFailure, match="connection: ") as caught:
        ChatModel(default_settings(RemoteSettings, cache=None, base_url=ELSEWHERE, model="m", attempts=1)).reply(HELLO)
    assert "proxy" not in str(caught.value)


@pytest.mark.parametrize("address", ["socks4://user:marker@127.0.0.1:1", "http://user:marker@host:port"])
def test_the_error_names_the_variable_of_a_proxy_that_cannot_be_used(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(SettingsError, match=r"judge\.base_url=.*ALL_PROXY cannot be used .*NO_PROXY") as caught:
        ChatModel(default_settings(RemoteSettings, cache=None, base_url=ELSEWHERE, model="m"), key="judge")
    assert "marker" not in str(caught.value)


def test_a_lost_connection_names_the_proxy_it_went_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # never listens: connections are refused
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(RemoteFailure, match=r"connection: .*through the proxy .* http_proxy"):
            ChatModel(default_settings(RemoteSettings, cache=None, base_url=ELSEWHERE, model="m", attempts=1)).reply(
                HELLO
            )
