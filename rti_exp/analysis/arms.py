"""The arms of a study: labels made of the config keys that differ between its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.analysis.text import short_name
from rti_exp.config.identity import VOLATILE
from rti_exp.runs.differences import Flat

IGNORED = frozenset({*VOLATILE, "seed", "hydra"})
"""Keys that never distinguish arms, with everything below them; except `trainer.precision`, which changes results."""
ABSENT = "default"
"""Shown for a key that a run lacks, and for a config group left at its default."""
PLAIN = frozenset({"none", "null", "off", "grpo", ABSENT})
"""Choices that add nothing. They sort first, as a delta of 0 does."""


def is_ignored(key: str) -> bool:
    return key.partition(".")[0] in IGNORED and key != "trainer.precision"


def parse_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """{"gate.delta": "5"} from Hydra's ["++gate.delta=5"]; deletions and flags are skipped."""
    parsed: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and not key.startswith("~"):
            parsed[key.lstrip("+").partition("@")[0]] = value
    return parsed


def normal(value: Any) -> Any:
    """One form for equal values: 5 and 5.0, inf and "inf"."""
    if isinstance(value, str):
        return math.inf if value.lower().lstrip("+.") in ("inf", "infinity") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(value)


def show(value: Any) -> str:
    """A config value as a user would type it: 5, 0.2, inf, null, true."""
    value = normal(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    if isinstance(value, list):
        return short_name(f"[{','.join(show(item) for item in value)}]")
    return short_name(str(value))


def sort_key(value: Any) -> tuple[int, float, str]:
    """Plain choices first, then numbers by size, then text."""
    value = normal(value)
    if value is None or (isinstance(value, str) and value.lower() in PLAIN):
        return (0, 0.0, show(value))
    if isinstance(value, bool | float):
        return (1, float(value), "")
    return (2, 0.0, show(value))


def _differing(configs: Sequence[Flat]) -> list[str]:
    """Keys without one common value in all configs, in order of first appearance."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if not is_ignored(key) and len({repr(normal(config.get(key, ABSENT))) for config in configs}) > 1
    ]


def _determines(group: str, key: str, configs: Sequence[Flat], choices: Sequence[Mapping[str, str]]) -> bool:
    """Whether the choice of `group` alone determines the value of `key`."""
    values: dict[str, set[str]] = {}
    for config, run in zip(configs, choices, strict=True):
        values.setdefault(run.get(group, ABSENT), set()).add(repr(normal(config.get(key, ABSENT))))
    return all(len(distinct) == 1 for distinct in values.values())


def swept_values(configs: Sequence[Flat], overrides: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each run, the value of each key that distinguishes the study's arms.

    A config group chosen by override (`corrector=teacher`) changes many keys at once. It replaces the keys that its
    choice determines; only the remaining keys are named too.
    """
    differing = _differing(configs)
    choices = [parse_overrides(run) for run in overrides]
    typed = dict.fromkeys(key for run in choices for key in run)
    leaves = {key for config in configs for key in config}
    groups = [
        key
        for key in typed
        if key not in leaves and not is_ignored(key) and len({run.get(key, ABSENT) for run in choices}) > 1
    ]
    explained: set[str] = set()
    named: list[str] = []
    for group in groups:
        # An experiment file is not a config node: it may set any key that was not typed.
        candidates = [key for key in differing if key.startswith(f"{group}.")] or [
            key for key in differing if key not in typed
        ]
        determined = {key for key in candidates if _determines(group, key, configs, choices)}
        if determined - explained:
            named.append(group)
        explained |= determined
    # An option may set keys outside its group: `algorithm=luffy` switches the corrector off.
    for group in named:
        explained |= {key for key in differing if key not in typed and _determines(group, key, configs, choices)}
    order = {key: place for place, key in enumerate(typed)}
    names = [*named, *(key for key in differing if key not in explained)]
    names.sort(key=lambda key: order.get(key, len(order)))
    return [
        {key: run.get(key, ABSENT) if key in named else config.get(key, ABSENT) for key in names}
        for config, run in zip(configs, choices, strict=True)
    ]


def label(values: Mapping[str, Any]) -> str:
    """`gate.delta=5`, several joined by a comma; "all runs" where nothing differs."""
    return ", ".join(f"{key}={show(value)}" for key, value in values.items()) or "all runs"


def is_plain_grpo(config: Mapping[str, Any]) -> bool:
    """Whether a flat config is GRPO without additions.

    It never intervenes (delta below 1, or no corrector), replaces no groups and has no token budget.
    """
    delta = normal(config.get("gate.delta"))
    never = (isinstance(delta, float) and delta < 1.0) or config.get("corrector._target_", "") is None
    grpo = str(config.get("algorithm._target_", "GRPO")).rpartition(".")[2] == "GRPO"
    refills = config.get("algorithm.dynamic_sampling", 0)
    return never and grpo and not refills and normal(config.get("budget.tokens", "inf")) == math.inf
