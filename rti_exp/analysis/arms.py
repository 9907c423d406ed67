"""What distinguishes the arms of a study: the config keys that differ between its runs, as labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.analysis.text import short_name
from rti_exp.runs.differences import Flat

VOLATILE = ("seed", "study", "runs_root", "fresh", "checkpoint_every", "size", "logger", "hydra", "trainer", "limits")
"""Keys that make no arm, with all below them; but `trainer.precision` changes results, and does."""

ABSENT = "default"
"""Shown for a key that a run does not have, and for a config group that it left at its default."""

PLAIN = frozenset({"none", "null", "off", "grpo", ABSENT})
"""Choices that mean "nothing added": they sort first, as does a delta of 0."""


def is_volatile(key: str) -> bool:
    return key.partition(".")[0] in VOLATILE and key != "trainer.precision"


def parse_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """{"gate.delta": "5"} from Hydra's ["++gate.delta=5"]; deletions and flags are left out."""
    parsed: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if equals and not key.startswith("~"):
            parsed[key.lstrip("+").partition("@")[0]] = value
    return parsed


def normal(value: Any) -> Any:
    """Equal values in one form: 5 and 5.0, inf and "inf"."""
    if isinstance(value, str):
        if value.lower().lstrip("+.") in ("inf", "infinity"):
            return math.inf
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return float(value)


def show(value: Any) -> str:
    """A config value as one would type it: 5, 0.2, inf, null, true."""
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
    """Non-volatile keys that do not have one value in all configs, in order of first appearance."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if not is_volatile(key) and len({repr(normal(config.get(key, ABSENT))) for config in configs}) > 1
    ]


def _told_by(group: str, key: str, configs: Sequence[Flat], choices: Sequence[Mapping[str, str]]) -> bool:
    """Whether the choice of `group` alone tells the value of `key`."""
    values: dict[str, set[str]] = {}
    for config, run in zip(configs, choices, strict=True):
        values.setdefault(run.get(group, ABSENT), set()).add(repr(normal(config.get(key, ABSENT))))
    return all(len(found) == 1 for found in values.values())


def swept_values(configs: Sequence[Flat], overrides: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each run, the value of each key that tells the study's arms apart.

    A config group that was chosen by override (`corrector=teacher`) changes many keys at once: it stands
    for those that are fully told by the choice, and only the others are named too.
    """
    differing = _differing(configs)
    choices = [parse_overrides(run) for run in overrides]
    typed = dict.fromkeys(key for run in choices for key in run)
    leaves = {key for config in configs for key in config}
    groups = [
        key
        for key in typed
        if key not in leaves and not is_volatile(key) and len({run.get(key, ABSENT) for run in choices}) > 1
    ]
    told: set[str] = set()
    named: list[str] = []
    for group in groups:
        below = [key for key in differing if key.startswith(f"{group}.")]
        # An experiment file is no config node: it may set anything that was not typed itself.
        below = below or [key for key in differing if key not in typed]
        explained = {key for key in below if _told_by(group, key, configs, choices)}
        if explained - told:
            named.append(group)
        told |= explained
    # An option may set keys outside of its group: `algorithm=luffy` switches the corrector off.
    told |= {
        key for key in differing if key not in typed and any(_told_by(group, key, configs, choices) for group in named)
    }
    names = [*named, *(key for key in differing if key not in told)]
    order = {key: place for place, key in enumerate(typed)}
    names.sort(key=lambda key: order.get(key, len(order)))
    return [
        {key: run.get(key, ABSENT) if key in named else config.get(key, ABSENT) for key in names}
        for config, run in zip(configs, choices, strict=True)
    ]


def label(values: Mapping[str, Any]) -> str:
    """`gate.delta=5`, several joined by a comma; "all runs" where nothing differs."""
    return ", ".join(f"{key}={show(value)}" for key, value in values.items()) or "all runs"


def is_plain_grpo(config: Mapping[str, Any]) -> bool:
    """Whether a flat config is GRPO and nothing more: it never intervenes (a gate that never opens, or no
    corrector), has no other algorithm, replaces no groups, and has no token budget."""
    delta = normal(config.get("gate.delta"))
    never = (isinstance(delta, float) and delta < 1.0) or config.get("corrector._target_", "") is None
    grpo = str(config.get("algorithm._target_", "GRPO")).rpartition(".")[2] == "GRPO"
    refills = config.get("algorithm.dynamic_sampling", 0)
    return never and grpo and not refills and normal(config.get("budget.tokens", "inf")) == math.inf
