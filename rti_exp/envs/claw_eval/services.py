"""The mock services of one episode: processes on loopback, each at a separate port."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.claw_eval.folders import script_of
from rti_exp.envs.claw_eval.frozen_clock import VARIABLE

INHERITED = ("PATH", "HOME", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "TMPDIR")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_PORT = re.compile(r"//(localhost|127\.0\.0\.1):(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: Any
    """Parsed JSON, or the text where it is none."""


class Services:
    """Starts what a task names and waits until each answers. They end with this object, or with this process.

    Raises:
        InfrastructureError: a service does not start in time; here and in `call`: a service does not answer.
    """

    def __init__(self, node: Mapping[str, Any], root: Path, *, now: str, seconds: float) -> None:
        self._node = node
        self._now = now
        self._seconds = seconds
        self._ports: dict[int, int] = {}
        processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _stop, processes)
        try:
            for service in node["services"]:
                processes.append(self._start(service, root))
            for service, process in zip(node["services"], processes, strict=True):
                self._wait(service, process)
        except BaseException:
            _stop(processes)
            raise
        self._processes = processes

    def _start(self, service: Mapping[str, Any], root: Path) -> subprocess.Popen[bytes]:
        try:
            script = script_of(service["command"], root)
        except ValueError as error:
            raise InfrastructureError(f"service {service['name']}: {error}") from error
        port = _free_port()
        self._ports[int(service["port"])] = port
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment |= {"ERROR_RATE": "0"} | {name: str(value) for name, value in (service.get("env") or {}).items()}
        return subprocess.Popen(
            [sys.executable, "-m", "rti_exp.envs.claw_eval.service_process", str(script), str(port)],
            cwd=root,
            env={**environment, "PORT": str(port), VARIABLE: self._now},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self, service: Mapping[str, Any], process: subprocess.Popen[bytes]) -> None:
        url, method = self._local(service["health_check"]), service.get("health_check_method", "POST")
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise InfrastructureError(f"service {service['name']} ended at its start ({process.returncode})")
            try:
                if _request(url, method, {}, 2.0, {"X-Health-Check": "1"}).status < 500:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise InfrastructureError(f"service {service['name']} did not answer within {self._seconds:g} s")

    def _local(self, url: str) -> str:
        """The address with the port that the service has here."""
        match = _PORT.search(url)
        if match is None or int(match.group(2)) not in self._ports:
            raise InfrastructureError(f"{url}: must be at localhost and the port of one of the task's services")
        return _PORT.sub(f"//127.0.0.1:{self._ports[int(match.group(2))]}", url, count=1)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """The answer of the tool's endpoint, whatever its status."""
        endpoint = next(item for item in self._node["tool_endpoints"] if item["tool_name"] == tool)
        try:
            return _request(self._local(endpoint["url"]), endpoint.get("method", "POST"), arguments, self._seconds)
        except OSError as error:
            raise InfrastructureError(f"the service of {tool} does not answer: {error}") from error

    def audit(self) -> dict[str, Any]:
        """Each service's log of the calls to it, by the service's name."""
        bodies = {}
        for service in self._node["services"]:
            reset = service.get("reset_endpoint")
            if not reset:
                continue
            try:
                url = self._local(reset.removesuffix("/reset") + "/audit")
                bodies[service["name"]] = _request(url, "GET", None, self._seconds).body
            except OSError as error:
                raise InfrastructureError(f"service {service['name']} gives no audit: {error}") from error
        return bodies


def _request(url: str, method: str, body: Any, seconds: float, headers: Mapping[str, str] | None = None) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, data=data, method=method, headers={"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with _DIRECT.open(request, timeout=seconds) as response:
            status, text = response.status, response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode("utf-8", "replace")
    try:
        return Answer(status=status, body=json.loads(text))
    except ValueError:
        return Answer(status=status, body=text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        if process.stdin is not None:
            process.stdin.close()
    for process in processes:
        process.wait()
