"""A composed config, checked and normalised: typed settings, the run's identity, its directory.

Everything here happens before torch is imported. An unknown key, a wrong type or a value out of range
raises `SettingsError`, whose message names the full key and says what would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import importlib
import inspect
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.runs import run_key
from rti_exp.settings import (
    CHECK_NAMES,
    AlgorithmSettings,
    EvaluationSettings,
    GateSettings,
    InterventionSettings,
    ReweightSettings,
    RolePrompt,
    RoleSettings,
    RolloutSettings,
    RunSettings,
    SettingsError,
    VerifierSettings,
)

Settings = TypeVar("Settings")

VOLATILE = ("study", "runs_root", "fresh", "size", "logger", "trainer")
"""Keys that do not make another run: where it is kept, who is told, on what it is computed."""
SECRET_KEY = re.compile(r"api_?key|secret|password|(^|_)token$", re.IGNORECASE)
ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
NOT_FINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """A transformers folder, or `builtin:<name>` for one that ships with the package."""

    path: str = "builtin:tiny"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise SettingsError(f"policy.dtype={self.dtype!r}: must be float32, bfloat16 or float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectorSettings(RoleSettings):
    """`path` is the model that corrects; null is the policy itself."""

    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierNode(RoleSettings):
    """The verifier's group: which checks, and how the policy is asked."""

    policy: bool = True
    rule: bool = False
    checks: list[str] = field(default_factory=lambda: list(CHECK_NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """The roles' requests; {evidence} and {reason} are filled in."""

    validator: RolePrompt = field(default_factory=RolePrompt)
    corrector: RolePrompt = field(default_factory=RolePrompt)
    verifier: dict[str, RolePrompt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    every: int = 10
    """Iterations between two recordings of sampled groups; 0 records none."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise SettingsError(f"recorder.every={self.every}: must be an integer >= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSettings:
    """What Lightning's Trainer is made of."""

    accelerator: str = "cpu"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    threads: int = 1
    """CPU threads of torch in each process; one, so that figures do not depend on the machine's cores."""
    deterministic: bool = True

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"trainer.{name}={getattr(self, name)}: must be an integer >= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopSettings:
    """The keys that belong to no group and are no numbers of the run itself."""

    study: str | None = None
    runs_root: str = "runs"
    fresh: bool = False
    size: str = "full"

    def __post_init__(self) -> None:
        if self.study is not None and not re.fullmatch(r"[^\s./\\][^/\\\0\n]{0,119}", self.study):
            raise SettingsError(f"study={self.study!r}: must be a plain folder name of at most 120 characters")
        if not self.runs_root.strip():
            raise SettingsError("runs_root='': must be a folder")


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
    gate: GateSettings
    reweight: ReweightSettings
    intervention: InterventionSettings
    prompts: PromptSettings
    recorder: RecorderSettings
    trainer: TrainerSettings
    policy: PolicySettings
    engine: Part
    env: Part
    validator: Part
    corrector: Part
    verifier: Part
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
    "trainer": ("trainer", TrainerSettings),
    "policy": ("policy", PolicySettings),
}
"""Config node -> field of `Config`, settings class."""
PARTS: dict[str, type | None] = {
    "algorithm": AlgorithmSettings,
    "engine": None,
    "env": None,
    "validator": RoleSettings,
    "corrector": CorrectorSettings,
    "verifier": VerifierNode,
    "logger": None,
}
"""Nodes with a `_target_`; None: the options are checked against the signature of a torch-free target."""


def check(cfg: DictConfig) -> Config:
    """The typed config.

    Raises:
        SettingsError: an unknown key, a wrong type, a value without sense, or a secret.
    """
    try:
        raw = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{error.full_key}: {error.msg}") from error
    assert isinstance(raw, dict)
    nodes: dict[str, Any] = {str(key): value for key, value in raw.items() if key != "hydra"}
    _refuse_secrets(nodes)
    scalar_classes = (RunSettings, TopSettings)
    scalars = {entry.name for cls in scalar_classes for entry in dataclasses.fields(cls)}
    known = [*scalars, *GROUPS, *PARTS]
    for key in nodes:
        if key not in known:
            raise SettingsError(f"{key}: unknown key{_meant(key, known)}; known are {', '.join(sorted(known))}")
    for key in (*GROUPS, *PARTS):
        if not isinstance(nodes.get(key), dict):
            raise SettingsError(f"{key}={nodes.get(key)!r}: must be a group of keys; choose an option of {key}/")
    run, top = (
        typed(cls, {name: nodes[name] for name in _names(cls) if name in nodes}, "") for cls in scalar_classes
    )
    made = {attribute: typed(cls, nodes[key], key) for key, (attribute, cls) in GROUPS.items()}
    parts = {key: _part(key, nodes[key], cls) for key, cls in PARTS.items()}
    plain = _plain(nodes, run, top, made, parts)
    key = run_key(_identity(plain))
    return Config(run=run, top=top, plain=plain, key=key, **made, **parts)


def typed(cls: type[Settings], node: Mapping[str, Any], key: str) -> Settings:
    """`node` as a settings object; `key` is the node's own full key ("" at the top).

    Raises:
        SettingsError: an unknown key, a wrong type, or what `cls` refuses.
    """
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(cls)
    for name in node:
        if name not in hints:
            raise SettingsError(
                f"{prefix}{name}: unknown key{_meant(name, hints, prefix)}; {key} has {', '.join(hints)}"
            )
    values = {name: _number(value, hints[name], prefix + name) for name, value in node.items()}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(cls), values)
    except OmegaConfBaseException as error:
        path = error.full_key or str(error.key)
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        wanted = _words(hints[path]) if path in hints else error.msg
        raise SettingsError(f"{prefix}{path}={_shown(value)}: must be {wanted}") from error
    try:
        settings = OmegaConf.to_object(merged)
    except SettingsError as error:
        message = str(error)
        raise SettingsError(message if message.startswith(prefix) else f"{key}: {message}") from error
    assert isinstance(settings, cls)
    return settings


def _part(key: str, node: Mapping[str, Any], cls: type | None) -> Part:
    target = node.get("_target_")
    options = {name: value for name, value in node.items() if name != "_target_"}
    if target is not None and not isinstance(target, str):
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class")
    if target is None:
        return Part(target=None, options=options)
    if cls is None or not target.startswith("rti_exp."):
        cls = _signature_class(key, target)
    return Part(target=target, options=options if cls is None else typed(cls, options, key))


def _signature_class(key: str, target: str) -> type | None:
    """A settings class made from a target's keyword parameters; None if it takes any keyword.

    Only targets outside the package and torch-free ones in it come here.
    """
    module, _, name = target.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class ({error})") from error
    parameters = inspect.signature(made).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    hints = typing.get_type_hints(made if inspect.isfunction(made) else made.__init__)
    fields = [
        (parameter.name, hints.get(parameter.name, Any), field(default=parameter.default))
        for parameter in parameters
        if parameter.default is not parameter.empty
    ]
    return dataclasses.make_dataclass(name, fields)


def _names(cls: type) -> list[str]:
    return [entry.name for entry in dataclasses.fields(cls)]


def _meant(name: str, known: typing.Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def _number(value: Any, hint: Any, key: str) -> Any:
    """Numbers as the field wants them: infinity in each spelling; no fraction cut off; no negative zero."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, str) and float in options:
        sign = -1.0 if value.strip().startswith("-") else 1.0
        name = value.strip().lstrip("+-").lstrip(".").lower()
        value = sign * NOT_FINITE[name] if name in NOT_FINITE else value
    if int in options and float not in options and isinstance(value, float):
        if not value.is_integer():
            raise SettingsError(f"{key}={value}: must be {_words(hint)}")
        value = int(value)
    return value + 0.0 if isinstance(value, float) else value


def _words(hint: Any) -> str:
    """A type in words."""
    simple = {float: "a number, or inf", int: "an integer", bool: "true or false", str: "text", type(None): "null"}
    if hint in simple:
        return simple[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(member.name for member in hint)
    if isinstance(hint, types.UnionType):
        return " or ".join(_words(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is list:
        return f"a list ({_words(typing.get_args(hint)[0])} each)"
    return "a group of keys"


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def _refuse_secrets(node: Any, path: str = "") -> None:
    """Values under keys named like secrets must be names of environment variables."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _refuse_secrets(item, f"{path}.{index}")
    if not isinstance(node, Mapping):
        return
    for name, value in node.items():
        full = f"{path}.{name}" if path else str(name)
        if SECRET_KEY.search(str(name)) and not isinstance(value, Mapping | list | None):
            if not isinstance(value, str) or not ENVIRONMENT_NAME.fullmatch(value):
                raise SettingsError(
                    f"{full}: must be the NAME of an environment variable (capitals, digits, _) that holds the "
                    "secret; the value itself is never read from the config (and is not shown here)"
                )
        _refuse_secrets(value, full)


def _plain(nodes: Mapping[str, Any], run: Any, top: Any, made: Mapping[str, Any], parts: Mapping[str, Part]) -> dict:
    """The config as data, in the order of the YAML, with each value as its settings object holds it."""
    scalars = {**dataclasses.asdict(top), **dataclasses.asdict(run)}
    plain: dict[str, Any] = {}
    for key in nodes:
        if key in GROUPS:
            plain[key] = _data(made[GROUPS[key][0]])
        elif key in PARTS:
            plain[key] = {"_target_": parts[key].target, **_data(parts[key].options)}
        else:
            plain[key] = scalars[key]
    checks = plain["verifier"].get("checks")
    if checks:
        plain["verifier"]["checks"] = [name for name in CHECK_NAMES if name in checks]
    return plain


def _data(settings: Any) -> Any:
    if isinstance(settings, enum.Enum):
        return settings.name
    if dataclasses.is_dataclass(settings):
        return {entry.name: _data(getattr(settings, entry.name)) for entry in dataclasses.fields(settings)}
    if isinstance(settings, Mapping):
        return {str(key): _data(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [_data(value) for value in settings]
    return settings


def _identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    identity = {key: value for key, value in plain.items() if key not in VOLATILE}
    identity["precision"] = plain["trainer"]["precision"]
    return identity


def verifier_settings(node: VerifierNode) -> tuple[VerifierSettings, RoleSettings]:
    """The two halves of the verifier's group."""
    role = {entry.name: getattr(node, entry.name) for entry in dataclasses.fields(RoleSettings)}
    checks = [name for name in CHECK_NAMES if name in node.checks]
    return VerifierSettings(policy=node.policy, rule=node.rule, checks=checks), RoleSettings(**role)
