"""What a sweep varies: the keys with several values, its name made of them, and the values of one job.

This module imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig


def key_of(override: str) -> str:
    """The key that an override sets: "gate.delta" of "gate.delta=5", "a" of "+a@b=c"."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def swept_keys(job_overrides: Sequence[Sequence[str]]) -> list[str]:
    """The keys whose value is not the same in all jobs, in the order of the command line."""
    values: dict[str, set[str]] = {}
    for overrides in job_overrides:
        for override in overrides:
            values.setdefault(key_of(override), set()).add(override.partition("=")[2])
    return [key for key, seen in values.items() if len(seen) > 1]


def swept_in(arguments: Sequence[str]) -> list[str]:
    """The keys of a command line that have several values."""
    parser = OverridesParser.create()
    keys: list[str] = []
    for text in arguments:
        try:
            override = parser.parse_override(text)
        except HydraException:  # a flag, or what Hydra will refuse
            continue
        if override.is_sweep_override():
            keys.append(override.get_key_element().lstrip("+"))
    return keys


def swept_by(config: DictConfig) -> list[str]:
    """The keys that a whole multirun sweeps, in its sweeper's params or on its command line.

    `config` is the multirun's own, with the hydra node.
    """
    params = config.hydra.sweeper.get("params") or {}
    texts = [*(f"{key}={value}" for key, value in params.items()), *config.hydra.overrides.task]
    return list(dict.fromkeys(key_of(key) for key in swept_in(texts)))


def study_name(keys: Sequence[str]) -> str:
    """A readable folder name of what is swept: "gate.delta+seed"; "sweep" if nothing is."""
    name = "+".join(re.sub(r"[^A-Za-z0-9._-]", "-", key).strip(".") for key in keys if not key.startswith("hydra."))
    return name[:80] or "sweep"


def value_at(plain: Mapping[str, Any], key: str, default: Any) -> Any:
    """The value of a dotted key in a config; `default` for a group or a key that is not there."""
    node: Any = plain
    for step in key.split("."):
        node = node.get(step, default) if isinstance(node, Mapping) else default
    return default if isinstance(node, Mapping) else node
