"""A composed config, checked and normalised: typed settings, the run's identity, its directory.

Everything here happens before torch is imported. An unknown key, a wrong type or a value out of range
raises `SettingsError`, whose message names the full key and says what would be right.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.algorithm_settings import ALGORITHM_SETTINGS, teacher_path
from rti_exp.config.chat_settings import ChatSettings
from rti_exp.config.conversion import likely, signature_class, typed, unknown_key
from rti_exp.config.engine_settings import ENGINE_SETTINGS, check_engine
from rti_exp.config.engine_settings import without_volatile as engine_identity
from rti_exp.config.group_settings import (
    BudgetSettings,
    CorrectorSettings,
    LimitSettings,
    ProbeSettings,
    PromptSettings,
    RecorderSettings,
    TopSettings,
    TrainerSettings,
    ValidatorSettings,
)
from rti_exp.config.model_files import has_chat_template
from rti_exp.config.paths import policy_folder
from rti_exp.config.policy_settings import PolicySettings, check_lora
from rti_exp.config.remote_settings import (
    CORRECTOR_SETTINGS,
    VALIDATOR_SETTINGS,
    VERIFIER_SETTINGS,
    RemotePolicySettings,
    without_volatile,
)
from rti_exp.config.secrets import refuse_secrets
from rti_exp.config.settings import (
    CHECK_NAMES,
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RoleSettings,
    RolloutSettings,
    RunSettings,
    SettingsError,
)
from rti_exp.runs import run_key

MOVED_TARGETS = {
    "rti_exp.town_probe.TownProbe": "rti_exp.pretraining.probe_cases.TownProbe",
    "rti_exp.loggers.CsvLogger": "rti_exp.tracking.loggers.CsvLogger",
    "rti_exp.loggers.WandbLogger": "rti_exp.tracking.loggers.WandbLogger",
}
"""Former names of classes that moved: configs that name them still work, and run keys are still made with them."""
REMOVED_REMOTE_KEYS = ("price_input", "price_output", "price_cached_input", "max_cost")
"""Keys of earlier versions' endpoints. They were never part of the run key."""
VOLATILE = ("study", "runs_root", "fresh", "checkpoint_every", "size", "logger", "trainer", "limits")
"""Keys excluded from the run key: where the run is kept, logging, hardware, limits."""
TIMEOUT = "timeout"
"""The key of `env` that is no option of the environment: seconds that one call into it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A replaceable object: the class to make (None: no object), and its checked options."""

    target: str | None
    options: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole config, checked. `plain` is the same as JSON-able data, normalised; `key` its identity."""

    top: TopSettings
    run: RunSettings
    rollout: RolloutSettings
    evaluation: EvaluationSettings
    algorithm: Part
    gate: GateSettings | Part
    """A `Part` for a gate from another package, named by `gate._target_`."""
    reweight: ReweightSettings
    intervention: InterventionSettings
    prompts: PromptSettings
    recorder: RecorderSettings
    budget: BudgetSettings
    limits: LimitSettings
    trainer: TrainerSettings
    policy: PolicySettings
    engine: Part
    env: Part
    env_timeout: float | None
    """Seconds that one call into the environment may take; None: it runs in this process, unbounded."""
    validator: Part
    corrector: Part
    verifier: Part
    probe: Part
    logger: Part
    plain: dict[str, Any]
    key: str

    def directory(self, study: str) -> Path:
        return Path(self.top.runs_root).expanduser() / study / self.key


GROUPS: dict[str, tuple[str, type]] = {
    "rollout": ("rollout", RolloutSettings),
    "eval": ("evaluation", EvaluationSettings),
    "gate": ("gate", GateSettings),
    "reweight": ("reweight", ReweightSettings),
    "intervention": ("intervention", InterventionSettings),
    "prompts": ("prompts", PromptSettings),
    "recorder": ("recorder", RecorderSettings),
    "budget": ("budget", BudgetSettings),
    "limits": ("limits", LimitSettings),
    "trainer": ("trainer", TrainerSettings),
    "policy": ("policy", PolicySettings),
}
"""Config node -> field of `Config`, settings class."""
PARTS: dict[str, type | Mapping[str, type] | None] = {
    "algorithm": ALGORITHM_SETTINGS,
    "engine": ENGINE_SETTINGS,
    "env": None,
    "validator": VALIDATOR_SETTINGS,
    "corrector": CORRECTOR_SETTINGS,
    "verifier": VERIFIER_SETTINGS,
    "probe": ProbeSettings,
    "logger": None,
}
"""Nodes with a `_target_` -> settings class, or one for each target; None: the options are checked against the
signature of a torch-free target."""


def check(cfg: DictConfig) -> Config:
    """The typed config.

    Raises:
        SettingsError: an unknown key, a wrong type, a value without sense, or a secret.
    """
    return checked(as_data(cfg))


def check_stored(stored: DictConfig) -> Config:
    """`check` for the config.yaml of a run, which an earlier version may have written with keys that are gone."""
    for node in stored.values():
        remote = node.get("remote") if isinstance(node, DictConfig) else None
        if isinstance(remote, DictConfig):
            for key in REMOVED_REMOTE_KEYS:
                remote.pop(key, None)
    return check(stored)


def as_data(cfg: DictConfig) -> dict[str, Any]:
    """The config as data, resolved, without Hydra's own node.

    Raises:
        SettingsError: a value that is missing or cannot be resolved.
    """
    try:
        own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        raw = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key}: {error.msg}") from error
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def checked(nodes: dict[str, Any]) -> Config:
    """As `check`, of what `as_data` gives."""
    refuse_secrets(nodes)
    nodes.setdefault("limits", {})  # a run of before there were any
    known = [*_names(RunSettings), *_names(TopSettings), *GROUPS, *PARTS]
    for key in nodes:
        if key not in known:
            raise SettingsError(unknown_key(key, key, known, ""))
    for key in (*GROUPS, *PARTS):
        if not isinstance(nodes.get(key), dict):
            raise SettingsError(
                f"{key}={nodes.get(key)!r}: must be a group of keys; choose an option of {key}/"
                f"{likely(key, nodes.get(key))}"
            )
    run = typed(RunSettings, _only(nodes, RunSettings), "")
    top = typed(TopSettings, _only(nodes, TopSettings), "")
    classes = {**GROUPS, "policy": ("policy", RemotePolicySettings)} if "remote" in nodes["policy"] else GROUPS
    made: dict[str, Any] = {attribute: _settings(cls, nodes[key], key) for key, (attribute, cls) in classes.items()}
    timeout = _timeout(nodes["env"].get(TIMEOUT))
    options = {name: value for name, value in nodes["env"].items() if name != TIMEOUT}
    parts: dict[str, Any] = {
        key: _part(key, options if key == "env" else nodes[key], cls) for key, cls in PARTS.items()
    }
    plain = _plain(nodes, run, top, made, parts)
    plain["env"][TIMEOUT] = timeout
    key = run_key(_identity(plain, parts))
    return Config(run=run, top=top, env_timeout=timeout, plain=plain, key=key, **made, **parts)


def _settings(cls: type, node: Mapping[str, Any], key: str) -> Any:
    """The settings of a group. A gate with a `_target_` is a class of another package."""
    return _part(key, node, None) if key == "gate" and "_target_" in node else typed(cls, node, key)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and math.isfinite(value) and value > 0):
        raise SettingsError(f"env.{TIMEOUT}={value!r}: must be a number of seconds > 0, or null (no bound)")
    return float(value)


def _part(key: str, node: Mapping[str, Any], cls: type | Mapping[str, type] | None) -> Part:
    target = node.get("_target_")
    target = MOVED_TARGETS.get(target, target) if isinstance(target, str) else target
    options = {name: value for name, value in node.items() if name != "_target_"}
    if target is not None and not isinstance(target, str):
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class")
    if target is None:
        return Part(target=None, options=options)
    if isinstance(cls, Mapping):
        cls = cls.get(target)
    if cls is None or not target.startswith("rti_exp."):
        cls = signature_class(key, target)
    return Part(target=target, options=options if cls is None else typed(cls, options, key))


def check_files(config: Config) -> None:
    """That the models that the config names are there, and have positions for a whole trajectory.

    Raises:
        SettingsError: naming the key, and the missing file or what would be right.
    """
    if isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("policy=remote: a remote model can be evaluated (rti_exp.evaluate), not trained")
    check_lora(config.policy.lora)
    check_engine(config.engine.options)
    folders = [policy_folder(config.policy.path)]
    _check_positions(folders[0], config.rollout.max_context)
    if isinstance(config.corrector.options, CorrectorSettings) and config.corrector.options.path is not None:
        folders.append(policy_folder(config.corrector.options.path, "corrector.path"))
    for key, judge in (("validator", config.validator.options), ("verifier", config.verifier.options)):
        path = getattr(judge, "policy", None)
        if isinstance(path, str):
            folders.append(policy_folder(path, f"{key}.policy"))
    teacher = teacher_path(config.algorithm.options)
    if teacher is not None:
        _check_positions(policy_folder(teacher, "algorithm.teacher"), config.rollout.max_context)
    _check_chat(config.policy, folders)


def _check_chat(policy: PolicySettings, folders: Sequence[Path]) -> None:
    """That options of chat templates have one to act on: the policy's, or that of a model that plays a role."""
    plain, defaults = _data(policy.chat), _data(ChatSettings())
    changed = [name for name in defaults if plain[name] != defaults[name]]
    if changed and not any(map(has_chat_template, folders)):
        raise SettingsError(
            f"policy.chat.{changed[0]}={plain[changed[0]]!r}: must be left out with policy.path={policy.path!r}, which "
            "has no chat template: it is spoken to in the embedded policies' own format"
        )


def _check_positions(folder: Path, max_context: int) -> None:
    try:
        positions = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (ValueError, AttributeError) as error:
        raise SettingsError(f"{folder / 'config.json'}: is no model's config ({error})") from error
    if positions is not None and max_context > positions:
        raise SettingsError(
            f"rollout.max_context={max_context}: must be at most {positions}, the positions of {folder}"
        )


def _only(nodes: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The nodes that are fields of `cls`."""
    return {name: nodes[name] for name in _names(cls) if name in nodes}


def _names(cls: type) -> list[str]:
    return [entry.name for entry in dataclasses.fields(cls)]


def _plain(nodes: Mapping[str, Any], run: Any, top: Any, made: Mapping[str, Any], parts: Mapping[str, Part]) -> dict:
    """The config as data, in the order of the YAML, with each value as its settings object holds it."""
    scalars = {**dataclasses.asdict(top), **dataclasses.asdict(run)}
    plain: dict[str, Any] = {}
    for key in nodes:
        if key in GROUPS:
            plain[key] = _data(made[GROUPS[key][0]])
        elif key in PARTS:
            plain[key] = _data(parts[key])
        else:
            plain[key] = scalars[key]
    checks = plain["verifier"].get("checks")
    if checks:
        plain["verifier"]["checks"] = [name for name in CHECK_NAMES if name in checks]
    return plain


def _data(settings: Any) -> Any:
    if isinstance(settings, enum.Enum):
        return settings.name
    if isinstance(settings, Part):
        return {"_target_": settings.target, **_data(settings.options)}
    if dataclasses.is_dataclass(settings):
        return {entry.name: _data(getattr(settings, entry.name)) for entry in dataclasses.fields(settings)}
    if isinstance(settings, Mapping):
        return {str(key): _data(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [_data(value) for value in settings]
    return settings


def _identity(plain: Mapping[str, Any], parts: Mapping[str, Part]) -> dict[str, Any]:
    identity = {key: value for key, value in plain.items() if key not in VOLATILE}
    for key in ("validator", "corrector", "verifier"):
        if dataclasses.is_dataclass(parts[key].options):
            identity[key] = without_volatile(parts[key].options, plain[key])
    if isinstance(parts["validator"].options, ValidatorSettings):
        identity["validator"] = _without_defaults(
            identity["validator"], ValidatorSettings(), kept=tuple(_names(RoleSettings))
        )
    identity["engine"] = engine_identity(parts["engine"].target, plain["engine"])
    identity["env"] = {key: value for key, value in plain["env"].items() if key != TIMEOUT}
    identity["policy"] = _without_defaults(plain["policy"], PolicySettings(), kept=("path", "dtype"))
    if chat := identity["policy"].get("chat"):  # a date at its default would make other keys of earlier runs
        identity["policy"]["chat"] = _without_defaults(chat, ChatSettings(), kept=tuple({*chat} - {"date"}))
    former = {moved: name for name, moved in MOVED_TARGETS.items()}
    identity["probe"] = {
        **plain["probe"],
        "_target_": former.get(plain["probe"]["_target_"], plain["probe"]["_target_"]),
    }
    identity["precision"] = plain["trainer"]["precision"]
    return identity


def _without_defaults(node: Mapping[str, Any], defaults: Any, *, kept: tuple[str, ...]) -> dict[str, Any]:
    """Options at their defaults do not count, but for `kept`: a key that is added later makes no other run."""
    plain = _data(defaults)
    return {key: value for key, value in node.items() if key in kept or key not in plain or value != plain[key]}
