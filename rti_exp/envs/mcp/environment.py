"""An MCP server and a task file as an `Environment`."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.parse
from collections.abc import Sequence
from typing import Any

from rti_exp.config.fields import Count, FinitePositive, Natural
from rti_exp.envs.judge_model import JudgeModel
from rti_exp.envs.mcp.episode import EpisodeSettings, McpEpisode
from rti_exp.envs.mcp.judge import Judge
from rti_exp.envs.mcp.session import McpSession, ServerSpec
from rti_exp.envs.mcp.task_file import needs_judge, read_tasks
from rti_exp.envs.required_packages import require
from rti_exp.types import Task

INSTALL = "pip install 'rti-exp[mcp]'"


class Mcp:
    """Tasks of a JSONL file (`rti_exp.envs.mcp.task_file`) over the tools of an MCP server.

    Args:
        command: starts a server that speaks over stdio; `{python}` in it is this interpreter.
        url: a server that speaks over HTTP, in place of `command`.
        pass_environment: names of environment variables that a started server gets (keys of a map service).
        headers: header -> name of the environment variable that holds its value, for `url`.
        tasks_file: a JSONL file, or `builtin:navigation`.
        shared: whether all episodes use one connection; suitable for read-only servers. Otherwise each
            episode has its own connection, and over stdio a separate server process.
        state_tool: a tool without arguments that reports the server's whole state; hidden from the policy.
        hidden_tools: further tools that the policy may not use.
        partial_reward: the reward is the share of conditions that are met, instead of all or nothing.
        answer_characters: longer answers of a tool are cut.
        judge: settings of the judge model (`rti_exp.config.remote_settings.RemoteSettings`); null: there is none.
        judge_model: the judge itself, in place of `judge`; for use from Python.
        judge_retries: further tries for an answer of the judge that cannot be read.
        max_turns: assistant turns an episode may take.
        seconds: how long a server's start, and each call, may take.

    Raises:
        SettingsError: the extra is not installed.
        ValueError: an invalid value, or an invalid task file.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] | None,
        url: str | None,
        pass_environment: Sequence[str],
        headers: dict[str, str] | None,
        tasks_file: str,
        shared: bool,
        state_tool: str | None,
        hidden_tools: Sequence[str],
        partial_reward: bool,
        answer_characters: Count,
        judge: dict[str, Any] | None,
        judge_model: Any = None,
        judge_retries: Natural,
        max_turns: Count,
        seconds: FinitePositive,
    ) -> None:
        _check_server(command, url, pass_environment, headers)
        self.max_turns = max_turns
        self._tasks = read_tasks(tasks_file)
        if judge is None and judge_model is None and (judged := [task for task in self._tasks if needs_judge(task)]):
            raise ValueError(
                f"env.judge=null: must be a model's settings, task {judged[0].id!r} has a judge's condition"
            )
        require(("mcp",), purpose="env=mcp", install=INSTALL)
        model = judge_model if judge is None else _judge_model(judge)
        self._judge = None if model is None else Judge(model=model, retries=judge_retries)
        self._shared = shared
        self._session: McpSession | None = None
        self._server = ServerSpec(
            command=tuple(command or ()),
            url=url,
            pass_environment=tuple(pass_environment),
            headers=headers,
            seconds=seconds,
        )
        self._settings = EpisodeSettings(
            state_tool=state_tool,
            hidden_tools=tuple(hidden_tools),
            partial_reward=partial_reward,
            answer_characters=answer_characters,
        )

    def tasks(self, split: str) -> list[Task]:
        if split not in ("train", "heldout"):
            raise ValueError(f'no split {split!r}: use "train" or "heldout"')
        return [task for task in self._tasks if task.split == split]

    def start(self, task: Task) -> McpEpisode:
        return McpEpisode(task, open_session=self._open, judge=self._judge, settings=self._settings)

    def _open(self) -> McpSession:
        if not self._shared:
            return McpSession(self._server)
        if self._session is None or self._session.broken:
            self._session = McpSession(self._server)
        return self._session


def _check_server(
    command: Sequence[str] | None, url: str | None, pass_environment: Sequence[str], headers: dict[str, str] | None
) -> None:
    if (command is None) == (url is None):
        raise ValueError("env.command, env.url: exactly one of them must be given")
    if command is not None:
        program = command[0].replace("{python}", sys.executable) if command else ""
        if shutil.which(program) is None:
            raise ValueError(f"env.command={list(command)}: must begin with a program; there is no {program!r}")
    if url is not None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ValueError("env.url: must begin with http:// or https://, name a host, and hold no password")
    for name in (*pass_environment, *(headers or {}).values()):
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} (env.pass_environment, env.headers) must be set")


def _judge_model(node: dict[str, Any]) -> JudgeModel:
    from rti_exp.config.defaults import endpoint_settings
    from rti_exp.engines.remote import ChatModel

    return ChatModel(endpoint_settings(node, "env.judge"), key="env.judge")
