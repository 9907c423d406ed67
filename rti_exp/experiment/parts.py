"""Objects from config nodes. The only file that calls `hydra.utils.instantiate`; the called code imports torch.

Each part's class is its group's `_target_`. Ours take their settings object and the objects they work with; classes
of other packages and environments take their options as keyword arguments.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate

from rti_exp.config.check import read_part
from rti_exp.config.defaults import default_settings, node_at
from rti_exp.config.engine_settings import LocalEngineSettings
from rti_exp.config.identity import TIMEOUT
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Part
from rti_exp.envs.base import Environment
from rti_exp.envs.contract import checked_tasks
from rti_exp.envs.isolated import IsolatedEnvironment
from rti_exp.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rti_exp.engines.local import LocalEngine


def build_part(part: Part, **objects: Any) -> Any:
    """The part's object; `objects` are passed as they are.

    Raises:
        SettingsError: the constructor ends the process, which would pass for a success of the command.
    """
    try:
        return instantiate({"_target_": part.target, "_partial_": True, "_convert_": "all"})(**objects)
    except SystemExit as error:
        raise SettingsError(
            f"_target_={part.target!r}: must be created without ending the process; it called sys.exit({error.code!r})"
        ) from error


def options_of(part: Part) -> dict[str, Any]:
    """The part's options as keyword arguments."""
    if isinstance(part.options, dict):
        return part.options
    return {entry.name: getattr(part.options, entry.name) for entry in dataclasses.fields(part.options)}


def build_environment(env: Part, timeout: float | None, *, isolated: bool = True) -> Environment:
    """The environment; with the embedded world this imports no torch.

    Args:
        timeout: Seconds that one call may take. If set, the environment runs in a separate process, unless
            `isolated` is False.

    Raises:
        SettingsError: an invalid option.
        InfrastructureError: the separate process cannot create it.
    """
    options = options_of(env)
    try:
        if timeout is None or not isolated:
            return build_part(env, **options)
        assert env.target is not None
        return IsolatedEnvironment(env.target, options, timeout=timeout)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def environment_tasks(env: Part, environment: Environment, split: str) -> list[Task]:
    """The tasks of a split.

    Raises:
        SettingsError: the environment fails to list them, or two have one id.
    """
    try:
        return checked_tasks(environment.tasks(split), split)
    except (Exception, SystemExit) as error:  # third-party code
        raise broken_environment(env, error) from error


def require_heldout(env: Part, heldout: Sequence[Task], requested: int) -> None:
    """
    Raises:
        SettingsError: an evaluation of no task is requested.
    """
    if requested and not heldout:
        raise SettingsError(
            f"eval.tasks={requested}: must be 0 (no evaluation), or env an environment with held-out tasks; "
            f"{env.target} has none"
        )


def broken_environment(env: Part, error: BaseException) -> SettingsError:
    """The error of an environment that cannot be created or cannot list its tasks, with the line that raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return SettingsError(
        f"env._target_={env.target!r}: must be an environment that can be created and has tasks; it raised "
        f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
    )


def default_environment(option: str, **changes: Any) -> Any:
    """The environment of `conf/env/<option>.yaml` in this process, with `changes`.

    Example:
        >>> default_environment("town", train_tasks=2).max_turns
        6
    """
    node = node_at("train", f"env={option}", "env")
    part = read_part("env", {**{key: value for key, value in node.items() if key != TIMEOUT}, **changes}, None)
    return build_part(part, **options_of(part))


def default_engine(model: PreTrainedModel, **changes: Any) -> LocalEngine:
    """The local engine with the memory settings of `conf/engine/local.yaml`, with `changes`."""
    from rti_exp.engines.local import LocalEngine

    options = dataclasses.asdict(default_settings(LocalEngineSettings))  # pyright: ignore[reportArgumentType]
    return LocalEngine(model, **{**options, **changes})
