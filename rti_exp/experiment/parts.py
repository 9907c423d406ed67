"""Objects from config nodes. The only file that calls `hydra.utils.instantiate`; the called code imports torch.

Each part's class is its group's `_target_`. Ours take their settings object and the objects they work with; classes
of other packages and environments take their options as keyword arguments.
"""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate

from rti_exp.config.check import Part
from rti_exp.config.settings import SettingsError
from rti_exp.envs.base import Environment
from rti_exp.envs.isolated import IsolatedEnvironment


def build_part(part: Part, **objects: Any) -> Any:
    """The part's object; `objects` are passed as they are."""
    return instantiate({"_target_": part.target, "_partial_": True, "_convert_": "all"})(**objects)


def options_of(part: Part) -> dict[str, Any]:
    """The part's options as keyword arguments."""
    if isinstance(part.options, dict):
        return part.options
    return {name: getattr(part.options, name) for name in part.options.__dataclass_fields__}


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
