"""The configs of many jobs, without composing each from its files: jobs differ in a few values, mostly.

Composing a config takes a tenth of a second: minutes for a thousand jobs. The first job of a kind (the same groups, the
same keys set) is composed; another one of its kind is that config with its own values. This module imports no torch.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig

from rti_exp.config.check import as_data, checked
from rti_exp.config.typed_config import Config
from rti_exp.experiment.checks import check_parts
from rti_exp.tracking.loggers import check_logger

Compose = Callable[[Sequence[str]], DictConfig]
_ABSENT = object()
VALUES = ("seed", "max_iterations", "tasks_per_iteration", "group_size", "study", "runs_root", "fresh")
"""Keys without a dot that are no group of files ("size" is one)."""
NO_PART = (
    "seed",
    "study",
    "runs_root",
    "fresh",
    "size",
    "max_iterations",
    "gate",
    "eval",
    "recorder",
    "budget",
    "limits",
)
"""Keys that no part of a run can be wrong with."""


@dataclass(frozen=True, slots=True)
class _Template:
    """A composed job: its data, and the values of the keys in which others of its kind differ."""

    data: dict[str, Any]
    config: DictConfig


class SweepConfigs:
    """Composes and checks the configs of one sweep.

    `composed(overrides)` is what Hydra makes of them, of this job or, of an equal kind, another one: Hydra's sweeper
    asks for it only to see that it can be composed.
    """

    def __init__(self, compose: Compose) -> None:
        self._compose = compose
        self._parser = OverridesParser.create()
        self._templates: dict[Hashable, _Template] = {}
        self._parts: set[str] = set()
        self._parse = functools.lru_cache(maxsize=4096)(self._parser.parse_override)

    def composed(self, overrides: Sequence[str]) -> DictConfig:
        """
        Raises:
            HydraException, OmegaConfBaseException: they cannot be composed.
        """
        return self._template(overrides)[0].config

    def checked(self, overrides: Sequence[str]) -> Config:
        """
        Raises:
            SettingsError: as `check`, `check_parts` and `check_logger`.
            HydraException, OmegaConfBaseException: they cannot be composed.
        """
        template, values = self._template(overrides)
        data = copy.deepcopy(template.data)
        for key, value in values.items():
            *path, last = key.split(".")
            functools.reduce(lambda node, name: node[name], path, data)[last] = value
        config = checked(data)
        parts = repr({key: value for key, value in config.plain.items() if key not in NO_PART})
        if parts not in self._parts:
            check_parts(config)
            check_logger(config)
            self._parts.add(parts)
        return config

    def _template(self, overrides: Sequence[str]) -> tuple[_Template, dict[str, Any]]:
        """The composed job of this kind, and the values by which this one differs from it."""
        values = self._values(overrides)
        kind = (tuple(text for text in overrides if _key(text) not in values), tuple(values))
        template = self._templates.get(kind)
        if template is not None:
            return template, values
        config = self._compose(overrides)
        template = _Template(as_data(config), config)
        if values and all(_is_plain(template, key, value) for key, value in values.items()):
            self._templates[kind] = template
        return template, {}

    def _values(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The keys that are set to a plain value once, and to nothing else."""
        parsed = [self._parse(text) for text in overrides]
        keys = [override.key_or_group for override in parsed]
        return {
            override.key_or_group: override.value()
            for override in parsed
            if _sets_a_value(override) and keys.count(override.key_or_group) == 1
        }


def _key(text: str) -> str:
    return text.partition("=")[0]


def _sets_a_value(override: Override) -> bool:
    key, value = override.key_or_group, override.value()
    return (
        ("." in key or key in VALUES)
        and override.type is OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and not override.is_hydra_override()
        and (value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and "${" not in value))
    )


def _is_plain(template: _Template, key: str, value: Any) -> bool:
    """Whether this key is a leaf that holds just what the override says: then another value is all that makes another
    job."""
    node: Any = template.data
    for name in key.split("."):
        node = node.get(name, _ABSENT) if isinstance(node, Mapping) else _ABSENT
    same = type(node) is type(value) and (node == value or node != node)
    return same and not _interpolates(template.config)


def _interpolates(config: DictConfig) -> bool:
    """Whether some value of the config, Hydra's own aside, is made of others."""
    from omegaconf import OmegaConf

    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return "${" in str(OmegaConf.to_container(own, resolve=False))
