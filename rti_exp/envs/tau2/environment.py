"""τ²-bench as an `Environment`: its tasks and splits, and who plays the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.config.fields import Count, FiniteNonNegative
from rti_exp.config.settings import SettingsError
from rti_exp.envs.tau2 import benchmark
from rti_exp.envs.tau2.benchmark import DOMAINS, SOLO_DOMAINS
from rti_exp.envs.tau2.episode import Rules, Tau2Episode
from rti_exp.envs.tau2.phone_user import PhoneUser
from rti_exp.envs.tau2.users import ChatModel, Memory, ModelUser, Scenario, ScriptedUser, User
from rti_exp.types import Task

USERS = ("scripted", "model", "solo")


class Tau2:
    """A domain of τ²-bench (arXiv 2506.07982), scored by the benchmark's evaluators.

    Args:
        domain: airline, mock, retail or telecom.
        user: "scripted", a deterministic user (in telecom it works the phone as the agent says); "model", a language
            model under the benchmark's instructions for users, as the benchmark intends; "solo", no user
            but a ticket, all tools to the agent, text ends the episode without reward (mock, telecom).
        user_model: The endpoint of user=model: keys of `rti_exp.config.remote_settings.RemoteSettings`.
        user_temperature: For user=model; 0 in the benchmark.
        train_split: The benchmark's split to train on.
        heldout_split: The benchmark's split to evaluate on.
        only: Ids of the benchmark's tasks to keep; None keeps all.
        max_turns: Assistant turns an episode may take.
        max_steps: The benchmark's limit: each message, and each answer to tool calls, is a step.
        max_errors: The benchmark's limit on failed tool calls, including the user's.
        policy_in_evidence: Whether the evidence repeats the domain policy. The system message contains the policy,
            which the roles see with the rest of the conversation, if the policy's renderer shows system messages.

    Raises:
        SettingsError: an invalid option, or the benchmark is not installed.
    """

    def __init__(
        self,
        *,
        domain: str,
        user: str,
        user_model: dict[str, Any] | None,
        user_temperature: FiniteNonNegative,
        train_split: str,
        heldout_split: str,
        only: Sequence[str] | None,
        max_turns: Count,
        max_steps: Count,
        max_errors: Count,
        policy_in_evidence: bool,
    ) -> None:
        _check(domain, user, user_model)
        self.max_turns = max_turns
        self._user = user
        self._user_temperature = user_temperature
        self._splits = {"train": train_split, "heldout": heldout_split}
        self._only = None if only is None else list(only)
        self._rules = Rules(max_steps=max_steps, max_errors=max_errors, policy_in_evidence=policy_in_evidence)
        self._memory = Memory()
        self._domain = benchmark.domain(domain)
        self._check_tasks()
        self._model = _model(user_model) if user == "model" else None

    def _check_tasks(self) -> None:
        known = self._domain.splits
        for key, name in self._splits.items():
            if name not in known:
                raise SettingsError(f"env.{key}_split={name!r}: must be one of {', '.join(known)}")
        unknown = [name for name in self._only or () if name not in self._domain.tasks]
        if unknown:
            raise SettingsError(f"env.only: no task {unknown[0]!r} in {self._domain.name}")

    def tasks(self, split: str) -> list[Task]:
        if split not in self._splits:
            raise ValueError(f'no split {split!r} in τ²-bench: use "train" or "heldout"')
        ids = set(self._domain.splits[self._splits[split]])
        kept = [
            name
            for name, task in self._domain.tasks.items()
            if name in ids
            and (self._only is None or name in self._only)
            and (self._user != "solo" or self._domain.works_solo(task))
        ]
        return [
            Task(id=f"{self._domain.name}/{name}", family=self._family(name), split=split, payload={"task": name})
            for name in kept
        ]

    def _family(self, name: str) -> str:
        """In telecom the kind of issue, elsewhere the domain."""
        kind = re.match(r"\[(\w+)\]", name)
        return self._domain.name if kind is None else kind[1]

    def start(self, task: Task) -> Tau2Episode:
        tau2_task = self._domain.tasks[task.payload["task"]]
        return Tau2Episode(self._domain, task, tau2_task, self.user_of(tau2_task), self._rules)

    def user_of(self, task: Any) -> User | None:
        """The user of a benchmark task; None in solo mode."""
        if self._user == "solo":
            return None
        if self._model is not None:
            return ModelUser(
                model=self._model,
                prompt=self._domain.user_prompt(str(task.user_scenario)),
                tools=self._domain.tools("user"),
                temperature=self._user_temperature,
                memory=self._memory,
            )
        known = scenario(task)
        if self._domain.name == "telecom":
            return PhoneUser(known, [tool["name"] for tool in self._domain.tools("user")])
        return ScriptedUser(known)


def scenario(task: Any) -> Scenario:
    """The knowledge of a task's user."""
    instructions = task.user_scenario.instructions
    if isinstance(instructions, str):
        return Scenario(whole=str(task.user_scenario), reason=instructions)
    return Scenario(
        whole=str(task.user_scenario),
        reason=instructions.reason_for_call,
        known=instructions.known_info or "",
        instructions=instructions.task_instructions,
    )


def _check(domain: str, user: str, user_model: Mapping[str, Any] | None) -> None:
    if domain not in DOMAINS:
        raise SettingsError(f"env.domain={domain!r}: must be one of {', '.join(DOMAINS)}")
    if user not in USERS:
        raise SettingsError(f"env.user={user!r}: must be one of {', '.join(USERS)}")
    if user == "solo" and domain not in SOLO_DOMAINS:
        raise SettingsError(f"env.user='solo': the benchmark has it in {' and '.join(SOLO_DOMAINS)}, not in {domain}")
    if user == "model" and not user_model:
        raise SettingsError(
            "env.user_model: must name the endpoint that plays the user, e.g. "
            "'env.user_model={base_url: http://localhost:8000/v1, model: NAME}'; without an endpoint, env.user=scripted"
        )


def _model(options: Mapping[str, Any] | None) -> ChatModel:
    from rti_exp.config.defaults import endpoint_settings
    from rti_exp.engines.remote import ChatModel as RemoteChatModel

    return RemoteChatModel(endpoint_settings(options or {}, "env.user_model"), key="env.user_model")
