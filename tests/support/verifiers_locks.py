"""Real environments of the package `verifiers`, written for the tests; load_environment(kind) makes one of them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import verifiers as vf  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from verifiers.envs.multiturn_env import MultiTurnEnv  # pyright: ignore[reportMissingImports]
from verifiers.envs.tool_env import ToolEnv  # pyright: ignore[reportMissingImports]

CODES = [37, 74, 11, 48, 85, 22, 59, 96]


def rows(count: int = len(CODES)) -> Any:
    return Dataset.from_list(
        [{"question": f"Open lock {number}.", "answer": str(code)} for number, code in enumerate(CODES[:count])]
    )


class Locks(MultiTurnEnv):
    """A lock that a wrong code jams for good; `look` tells the code."""

    broken = ""

    async def setup_state(self, state: Any) -> None:
        state["lock"] = "closed"

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        said = messages[-1].content
        if said == "raise":
            raise ValueError("a bug of the environment")
        if said == "fail":
            raise vf.ToolError("the lock cannot be reached")
        if said == "wait":
            await asyncio.sleep(1000)
        if said == "dice":
            state["dice"] = random.SystemRandom().random()
            return [{"role": "user", "content": "rolled"}]
        if said == "look":
            return [{"role": "user", "content": f"The code is {state['answer']}."}]
        if state["lock"] == "closed":
            state["lock"] = "open" if said == state["answer"] else "jammed"
        if state["lock"] == "open":
            state["final_env_response"] = [{"role": "user", "content": "It is open."}]
            return []
        return [{"role": "user", "content": "It is jammed."}]


def opened(state: Any) -> float:
    """The lock is open in the end.

    A second line that nobody is told.
    """
    if state["answer"] == "96":
        raise RuntimeError("a bug of the reward")
    return float(state["lock"] == "open")


def quick(state: Any) -> float:
    return 1.0 if len(state["trajectory"]) <= 2 else 0.0


def told(completion: Any, answer: str) -> float:
    """The product is told."""
    return float(answer in completion[-1].content)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The one.
        b: The other.
    """
    return a * b


def group_reward(states: Any) -> list[float]:
    return [0.0 for _ in states]


def load_environment(kind: str = "locks", count: int = len(CODES)) -> Any:
    if kind == "tools":
        data = Dataset.from_list([{"question": "6 times 7?", "answer": "42"}, {"question": "3 by 5?", "answer": "15"}])
        return ToolEnv(dataset=data, eval_dataset=data, tools=[multiply], rubric=vf.Rubric(funcs=[told]), max_turns=4)
    if kind == "groups":
        return Locks(dataset=rows(), rubric=vf.Rubric(funcs=[group_reward]))
    if kind == "nothing":
        raise KeyError("no such kind")
    rubric = vf.Rubric(funcs=[opened, quick], weights=[1.0, 0.0])
    return Locks(dataset=rows(count), rubric=rubric, max_turns=5, system_prompt="You open locks.")
