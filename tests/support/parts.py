"""The constructor arguments of environments, as in conf/env/."""

from __future__ import annotations

from typing import Any

from rti_exp.config.defaults import node_at


def environment_options(option: str, **changes: Any) -> dict[str, Any]:
    """The constructor's arguments for `conf/env/<option>.yaml`, with `changes`."""
    node = node_at("train", f"env={option}", "env")
    return {**{key: value for key, value in node.items() if key not in ("_target_", "timeout")}, **changes}
