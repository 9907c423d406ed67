"""A connection to an MCP server for synchronous callers; each call is bounded in time.

A session lives in a task on the event loop of a separate thread: the SDK's contexts must be left by the task that
entered them. A server started over stdio ends when its standard input closes, and therefore with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import sys
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.mcp.tool_answers import ToolAnswer, tool_answer
from rti_exp.processes.background_loop import run

if TYPE_CHECKING:
    from mcp import ClientSession  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from mcp.client.session import MessageHandlerFnT  # pyright: ignore[reportMissingImports]

BASE_ENVIRONMENT = ("PYTHONPATH", "VIRTUAL_ENV", "JAVA_HOME", "NODE_PATH")
"""Variables that a server gets in addition to the SDK's choice (PATH, HOME, ...) and those that the config names."""
MAX_PAGES = 100
"""Pages of a server's list of tools."""
CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How a server is reached: `command` starts it over stdio, or `url` is its address over HTTP.

    `pass_environment` names variables of our environment that the started server gets; `headers` maps a header to
    the name of the variable that holds its value. `{python}` in the command is this interpreter.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    pass_environment: tuple[str, ...] = ()
    headers: Mapping[str, str] | None = None
    seconds: float = 60.0
    """How long the start, and each call, may take."""


class McpSession:
    """One connection; over stdio with a separate server process. It is closed when it is no longer referenced.

    Raises:
        InfrastructureError: the server does not start in time.
    """

    def __init__(self, server: ServerSpec) -> None:
        self._connection = _Connection(server)
        run(self._connection.open())
        _open_connections.add(self._connection)
        weakref.finalize(self, self._connection.close_soon)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Name, description and JSON-schema parameters of each; a call may change them."""
        return self._connection.tools

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
        self.tools: tuple[Mapping[str, Any], ...] = ()
        self._tools_changed = False
        self.broken: str | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._task = asyncio.ensure_future(self._live(ready))
        try:
            await asyncio.wait_for(asyncio.shield(ready), self._server.seconds)
        except TimeoutError:
            raise self._abandon(f"did not start within {self._server.seconds:g} s") from None

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """The session's whole life: the SDK's contexts must be entered and left in one task."""
        try:
            async with _connected(self._server, self._on_message) as session:
                self.tools = await _tools(session)
                ready.set_result(None)
                while (job := await self._jobs.get()) is not None:
                    try:
                        answer = await self._answer(session, job)
                    except Exception as error:  # passed to the caller, which classifies it
                        if not job.answer.done():
                            job.answer.set_exception(error)
                    else:
                        if not job.answer.done():
                            job.answer.set_result(answer)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # groups of the SDK's tasks; the connection is lost, whatever the error
            self.broken = self.broken or _summary(error)
        finally:
            self.broken = self.broken or "the connection is closed"
            if not ready.done():
                ready.set_exception(InfrastructureError(f"the MCP server did not start: {self.broken}"))
                ready.exception()  # mark as retrieved: the waiter may have timed out

    async def _on_message(self, message: Any) -> None:
        self._tools_changed |= getattr(message, "method", None) == "notifications/tools/list_changed"

    async def _answer(self, session: ClientSession, job: _Job) -> ToolAnswer:
        """
        Raises:
            Exception: the connection broke.
        """
        try:
            answer = tool_answer(await session.call_tool(job.name, job.arguments))
        except Exception as error:
            # The SDK raises the same error for a server's error response and for a lost connection.
            # Only the former still lists its tools.
            try:
                await session.list_tools()
            except Exception:
                raise error from None
            answer = ToolAnswer(text=f"Error: {error}", failed=True)
        if self._tools_changed:
            self._tools_changed = False
            self.tools = await _tools(session)
        return answer

    def _abandon(self, reason: str) -> InfrastructureError:
        self.broken = self.broken or reason
        self._task.cancel()
        return InfrastructureError(f"the MCP server {reason}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        if self.broken is not None:
            raise InfrastructureError(f"the MCP server is gone: {self.broken}")
        job = _Job(name=name, arguments=dict(arguments), answer=self._loop.create_future())
        self._jobs.put_nowait(job)
        await asyncio.wait({job.answer, self._task}, timeout=self._server.seconds, return_when=asyncio.FIRST_COMPLETED)
        if not job.answer.done():
            timed_out = f"gave no answer to {name} within {self._server.seconds:g} s"
            raise self._abandon(timed_out if self.broken is None else f"is gone: {self.broken}")
        try:
            return job.answer.result()
        except Exception as error:
            raise self._abandon(f"failed in {name}: {_summary(error)}") from error

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
    answer: asyncio.Future[ToolAnswer]


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
async def _connected(server: ServerSpec, on_message: MessageHandlerFnT) -> AsyncIterator[ClientSession]:
    from mcp import ClientSession, StdioServerParameters  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from mcp.client.stdio import stdio_client  # pyright: ignore[reportMissingImports]

    class Session(ClientSession):
        async def validate_tool_result(self, name: str, result: Any) -> None:
            """Accept every result: an answer without the promised structure is still an answer."""

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
        session = await stack.enter_async_context(Session(*streams, message_handler=on_message))
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
    """All tools, by name, over all pages. A repeated cursor ends the list: the server does not paginate.

    Raises:
        InfrastructureError: the list has more than MAX_PAGES pages.
    """
    from mcp_types import PaginatedRequestParams  # pyright: ignore[reportMissingImports]

    tools: dict[str, Any] = {}
    cursors: set[str | None] = set()
    cursor: str | None = None
    while cursor not in cursors:
        if len(cursors) == MAX_PAGES:
            raise InfrastructureError(f"its list of tools has more than {MAX_PAGES} pages")
        cursors.add(cursor)
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        tools |= {tool.name: tool for tool in page.tools if tool.name not in tools}
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(
        {"name": name, "description": tool.description or "", "parameters": dict(tool.input_schema)}
        for name, tool in tools.items()
    )


def _summary(error: BaseException) -> str:
    """The messages of the innermost errors of a group."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(itertools.islice(dict.fromkeys(_summary(inner) for inner in error.exceptions), 3))
    return f"{type(error).__name__}: {error}"
