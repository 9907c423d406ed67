"""A run's identity: the part of its config that the run key is a hash of."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from rti_exp.config.fields import VOLATILE as IN_NO_KEY
from rti_exp.config.fields import hints_of, identity_of, is_settings, marks
from rti_exp.config.job_settings import TopSettings
from rti_exp.config.remote_settings import VERIFIER_SETTINGS
from rti_exp.config.typed_config import Part

MOVED_TARGETS = {
    "rti_exp.town_probe.TownProbe": "rti_exp.pretraining.probe_cases.TownProbe",
    "rti_exp.loggers.CsvLogger": "rti_exp.tracking.loggers.CsvLogger",
    "rti_exp.loggers.WandbLogger": "rti_exp.tracking.loggers.WandbLogger",
}
"""Former names of classes that moved: configs that name them still work, and run keys are still made with them."""
VOLATILE_GROUPS = ("logger", "trainer", "limits")
"""Config groups excluded from the run key; `trainer.precision` is part of it."""
VOLATILE = (*(name for name, hint in hints_of(TopSettings).items() if IN_NO_KEY in marks(hint)), *VOLATILE_GROUPS)
"""Keys excluded from the run key: where the run is kept, logging, hardware, limits."""
TIMEOUT = "timeout"
"""The key of `env` that is no option of the environment: seconds that one call into it may take."""


def as_plain(settings: Any) -> Any:
    """Settings as data: dicts, lists, names of choices, numbers."""
    if isinstance(settings, enum.Enum):
        return settings.name
    if isinstance(settings, Part):
        return {"_target_": settings.target, **as_plain(settings.options)}
    if dataclasses.is_dataclass(settings):
        return {entry.name: as_plain(getattr(settings, entry.name)) for entry in dataclasses.fields(settings)}
    if isinstance(settings, Mapping):
        return {str(key): as_plain(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [as_plain(value) for value in settings]
    return settings


def identity(plain: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The data that the run key is made of. Names and keys that changed since are those of the first version."""
    kept = {key: value for key, value in plain.items() if key not in VOLATILE}
    for key, part in settings.items():
        options = part.options if isinstance(part, Part) else part
        if key in kept and is_settings(options):
            target = {"_target_": part.target} if isinstance(part, Part) else {}
            kept[key] = target | identity_of(options, plain[key])
    verifier = kept["verifier"]
    if verifier["_target_"] in VERIFIER_SETTINGS:
        verifier["steps_per_call"] = 8
        verifier["policy"] = verifier.pop("path", None) or verifier["policy"]
    former = {moved: name for name, moved in MOVED_TARGETS.items()}
    kept["probe"] = {
        **kept["probe"],
        "_target_": former.get(plain["probe"]["_target_"], plain["probe"]["_target_"]),
    }
    kept["env"] = {key: value for key, value in plain["env"].items() if key != TIMEOUT}
    kept["precision"] = plain["trainer"]["precision"]
    return kept
