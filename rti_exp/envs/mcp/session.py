"""A connection to an MCP server for synchronous callers; each call is bounded in time.

A session lives in a task on the event loop of a separate thread: the SDK's contexts must be left by the task that
entered them. A server started over stdio ends when its standard input closes, and therefore with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import sys
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.envs.base import InfrastructureError
from rti_exp.processes.background_loop import run

if TYPE_CHECKING:
    from mcp import ClientSession  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

BASE_ENVIRONMENT = ("PYTHONPATH", "VIRTUAL_ENV", "JAVA_HOME", "NODE_PATH")
"""Variables that a server gets in addition to the SDK's choice (PATH, HOME, ...) and those that the config names."""
MAX_PAGES = 100
"""Of a server's list of tools."""
CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How a server is reached: `command` starts one over stdio, or `url` is one over HTTP.

    `pass_environment` names variables of our environment that the started server gets; `headers` maps a header to
    the name of the variable that holds its value. `{python}` in the command is this interpreter.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    pass_environment: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    seconds: float = 60.0
    """How long the start, and each call, may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """`failed` means that the server reports an error, such as a wrong argument; the connection is intact."""

    text: str
    failed: bool


class McpSession:
    """One connection; over stdio with a separate server process. It is closed when nothing refers to it any more.

    Raises:
        InfrastructureError: the server does not start in time.
    """

    def __init__(self, server: ServerSpec) -> None:
        self._connection = _Connection(server)
        self.tools: tuple[Mapping[str, Any], ...] = run(self._connection.open())
        """Name, description and JSON-schema parameters of each."""
        _open_connections.add(self._connection)
        weakref.finalize(self, self._connection.close_soon)

    @property
    def broken(self) -> bool:
        """Whether every further call would fail."""
        return self._connection.broken is not None

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """
        Raises:
            InfrastructureError: no answer in time, or the connection broke.
        """
        return run(self._connection.call(name, arguments))

    def close(self) -> None:
        """End the connection, and the server that was started for it; waits up to CLOSE_SECONDS."""
        run(self._connection.close())


class _Connection:
    """A session's life on the event loop; used only there, except for `close_soon`."""

    def __init__(self, server: ServerSpec) -> None:
        self._server = server
        self.broken: str | None = None

    async def open(self) -> tuple[Mapping[str, Any], ...]:
        self._loop = asyncio.get_running_loop()
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        ready: asyncio.Future[tuple[Mapping[str, Any], ...]] = self._loop.create_future()
        self._task = asyncio.ensure_future(self._live(ready))
        try:
            return await asyncio.wait_for(asyncio.shield(ready), self._server.seconds)
        except TimeoutError:
            raise self._abandon(f"did not start within {self._server.seconds:g} s") from None

    async def _live(self, ready: asyncio.Future[tuple[Mapping[str, Any], ...]]) -> None:
        """The whole life: the SDK's contexts are entered and left here."""
        try:
            async with _connected(self._server) as session:
                ready.set_result(await _tools(session))
                while (job := await self._jobs.get()) is not None:
                    await job.do(session)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # groups of the SDK's tasks; the connection is over, whatever it was
            self.broken = self.broken or _summary(error)
        finally:
            self.broken = self.broken or "the connection is closed"
            if not ready.done():
                ready.set_exception(InfrastructureError(f"the MCP server did not start: {self.broken}"))
                ready.exception()  # mark as retrieved: the waiter may have timed out

    def _abandon(self, reason: str) -> InfrastructureError:
        self.broken = self.broken or reason
        self._task.cancel()
        return InfrastructureError(f"the MCP server {reason}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        from mcp.shared.exceptions import MCPError  # pyright: ignore[reportMissingImports]
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND  # pyright: ignore[reportMissingImports]

        if self.broken is not None:
            raise InfrastructureError(f"the MCP server is gone: {self.broken}")
        job = _Job(name=name, arguments=dict(arguments), answer=self._loop.create_future())
        self._jobs.put_nowait(job)
        await asyncio.wait({job.answer, self._task}, timeout=self._server.seconds, return_when=asyncio.FIRST_COMPLETED)
        if not job.answer.done():
            timed_out = f"gave no answer to {name} within {self._server.seconds:g} s"
            raise self._abandon(timed_out if self.broken is None else f"is gone: {self.broken}")
        try:
            result = job.answer.result()
        except MCPError as error:
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                return ToolAnswer(text=f"Error: {error.message}", failed=True)
            raise self._abandon(f"failed in {name}: {error.message}") from error
        except Exception as error:  # of the connection: the server's own errors are answers
            raise self._abandon(f"failed in {name}: {_summary(error)}") from error
        return ToolAnswer(text=_text(result), failed=bool(result.is_error))

    async def close(self) -> None:
        self._jobs.put_nowait(None)
        await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        self._task.cancel()

    def close_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the process is about to
            self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A call, and where its result or error goes."""

    name: str
    arguments: dict[str, Any]
    answer: asyncio.Future[Any]

    async def do(self, session: ClientSession) -> None:
        try:
            result = await session.call_tool(self.name, self.arguments)
        except Exception as error:  # passed to the caller, which classifies it
            if not self.answer.done():
                self.answer.set_exception(error)
            return
        if not self.answer.done():
            self.answer.set_result(result)


_open_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """End all connections of this process."""
    connections = list(_open_connections)
    if connections:
        run(_close(connections))


async def _close(connections: Sequence[_Connection]) -> None:
    await asyncio.gather(*(connection.close() for connection in connections))


@contextlib.asynccontextmanager
async def _connected(server: ServerSpec) -> AsyncIterator[ClientSession]:
    from mcp import ClientSession, StdioServerParameters  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from mcp.client.stdio import stdio_client  # pyright: ignore[reportMissingImports]

    async with contextlib.AsyncExitStack() as stack:
        streams: Any
        if server.url is not None:
            streams = await stack.enter_async_context(_http(server, stack))
        else:
            command = [part.replace("{python}", sys.executable) for part in server.command]
            names = (*BASE_ENVIRONMENT, *server.pass_environment)
            passed = {name: os.environ[name] for name in names if name in os.environ}
            quiet = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (the stack's)
            parameters = StdioServerParameters(command=command[0], args=command[1:], env=passed)
            streams = await stack.enter_async_context(stdio_client(parameters, errlog=quiet))
        session = await stack.enter_async_context(ClientSession(*streams, read_timeout_seconds=server.seconds))
        await session.initialize()
        yield session


@contextlib.asynccontextmanager
async def _http(server: ServerSpec, stack: contextlib.AsyncExitStack) -> AsyncIterator[Any]:
    import httpx2  # pyright: ignore[reportMissingImports]
    from mcp.client.streamable_http import streamable_http_client  # pyright: ignore[reportMissingImports]

    assert server.url is not None
    headers = {header: os.environ[name] for header, name in (server.headers or {}).items()}
    client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=server.seconds))
    async with streamable_http_client(server.url, http_client=client) as streams:
        yield streams


async def _tools(session: ClientSession) -> tuple[Mapping[str, Any], ...]:
    from mcp_types import PaginatedRequestParams  # pyright: ignore[reportMissingImports]

    tools, cursor = [], None
    for _ in range(MAX_PAGES):
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(
        {"name": tool.name, "description": tool.description or "", "parameters": dict(tool.input_schema)}
        for tool in tools
    )


def _text(result: Any) -> str:
    """A result as text; parts of other types are replaced by their type."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, sort_keys=True)
    return "\n".join(parts)


def _summary(error: BaseException) -> str:
    """The messages of the innermost errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(itertools.islice(dict.fromkeys(_summary(inner) for inner in error.exceptions), 3))
    return f"{type(error).__name__}: {error}"
