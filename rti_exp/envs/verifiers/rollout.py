"""A rollout of `verifiers` that waits for each of its turns.

The package's rollout is one coroutine that asks a client for the model's answers. This client hands over
the prompt and waits, so that an episode can stop between two turns. The coroutine lives on the event loop that
remote models use; it is cancelled when nothing refers to the rollout any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from rti_exp.envs.base import InfrastructureError
from rti_exp.envs.verifiers.scoring import ERRORS
from rti_exp.processes.background_loop import run

Result = TypeVar("Result")
MODEL = "policy"
OF_THE_PACKAGE = frozenset(
    (
        *("input", "prompt", "task", "client", "model", "sampling_args", "tool_defs", "trajectory", "trajectory_id"),
        *("completion", "is_completed", "is_truncated", "stop_condition", "final_env_response", "error", "timing"),
        *("reward", "advantage", "metrics", "usage", "usage_tracker", "timed_out"),
    )
)
"""Entries of a rollout's state that every environment has."""


class SteppedRollout:
    """One rollout of a row. `prompt` is the conversation that the policy answers next; None after the end.

    Raises:
        InfrastructureError: here and in `answer`: the environment raised, or took longer than `seconds`.
    """

    def __init__(self, world: Any, row: Mapping[str, Any], *, seconds: float) -> None:
        self._world = world
        self._seconds = seconds
        self._asked: asyncio.Queue[tuple[list[Any], list[Any], Any]] = asyncio.Queue()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.tools: list[Any] = []
        self.prompt: list[Any] | None = None
        self.state: Any = None
        """The package's; scored once the rollout is over."""
        self._task: asyncio.Task[Any] = self._within(self._start(row))
        weakref.finalize(self, self._task.get_loop().call_soon_threadsafe, self._task.cancel).atexit = False
        self._within(self._until_asked())

    def answer(self, response: Any) -> None:
        """Pass the package's response to `prompt`, and continue to the next prompt or the end."""
        self._within(self._give(response))

    def extra_state(self) -> dict[str, Any]:
        """The environment's entries of the rollout's state that have a JSON form."""
        kept: dict[str, Any] = {}
        for name, value in dict.items(self.state or {}):
            if name not in OF_THE_PACKAGE:
                with contextlib.suppress(TypeError, ValueError):
                    kept[str(name)] = json.loads(json.dumps(value))
        return kept

    def _within(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return run(asyncio.wait_for(work, self._seconds))
        except TimeoutError as error:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
            raise InfrastructureError(f"the environment gave no answer within {self._seconds:g} s") from error

    async def _start(self, row: Mapping[str, Any]) -> asyncio.Task[Any]:
        client = _client(self._asked, self._answers)
        return asyncio.ensure_future(self._world.rollout(dict(row), client, MODEL, {}))

    async def _give(self, response: Any) -> None:
        self._answers.put_nowait(response)
        await self._until_asked()

    async def _until_asked(self) -> None:
        asking = asyncio.ensure_future(self._asked.get())
        try:
            await asyncio.wait({asking, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self.prompt, self.tools, self.state = asking.result()
                return
        finally:
            asking.cancel()
        try:
            state = self._task.result()
        except Exception as error:  # third-party code
            raise InfrastructureError(f"the environment raised {type(error).__name__}: {error}") from error
        if state.get("error") is not None:
            raise InfrastructureError(f"the environment ended with {state['error']!r}")
        await self._score(state)
        self.prompt, self.state = None, state

    async def _score(self, state: Any) -> None:
        errors: list[str] = []
        token = ERRORS.set(errors)
        try:
            state["timing"].scoring.start = time.time()
            await self._world.rubric.score_rollout(state)
            state["timing"].scoring.end = time.time()
            await self._world.rubric.cleanup(state)
        finally:
            ERRORS.reset(token)
        if errors:
            raise InfrastructureError(f"a reward function raised: {errors[0]}")


def _client(asked: asyncio.Queue[Any], answers: asyncio.Queue[Any]) -> Any:
    """A client of the package that takes the model's answers from `answers`."""
    from verifiers.clients.client import Client  # pyright: ignore[reportMissingImports]

    class Seat(Client):
        async def get_response(
            self, prompt: Sequence[Any], model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
        ) -> Any:
            asked.put_nowait((list(prompt), list(tools or ()), kwargs.get("state")))
            return await answers.get()

        def setup_client(self, config: Any) -> Any: ...
        async def to_native_tool(self, tool: Any) -> Any: ...
        async def to_native_prompt(self, messages: Any) -> Any: ...
        async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
        async def raise_from_native_response(self, response: Any) -> None: ...
        async def from_native_response(self, response: Any) -> Any: ...
        async def close(self) -> None: ...

    return Seat(None)
