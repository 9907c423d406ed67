"""Plain config data into typed settings objects, with errors that name the key and what would be right."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import importlib
import inspect
import math
import operator
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.settings import SettingsError

Settings = TypeVar("Settings")

NOT_FINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


REMEMBERED = 4096
"""Settings objects that are kept: the jobs of a sweep differ in a few."""
_made: dict[tuple[type, str, str], Any] = {}


def typed(cls: type[Settings], node: Mapping[str, Any], key: str) -> Settings:
    """`node` as a settings object; `key` is the node's own full key ("" at the top).

    The same object for an equal node of the same class: settings are never changed.

    Raises:
        SettingsError: an unknown key, a wrong type, or what `cls` refuses.
    """
    known = (cls, key, repr(node))  # repr tells 1, 1.0 and true apart
    if known not in _made:
        if len(_made) >= REMEMBERED:
            _made.clear()
        _made[known] = _typed(cls, node, key)
    return _made[known]


def _typed(cls: type[Settings], node: Mapping[str, Any], key: str) -> Settings:
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(cls)
    for name in node:
        if name not in hints:
            raise SettingsError(unknown_key(prefix + name, name, hints, key))
    nested = {name: _nested(hints[name], value, prefix + name) for name, value in node.items() if _nests(hints[name])}
    values = {name: _number(value, hints[name], prefix + name) for name, value in node.items() if name not in nested}
    try:
        merged = OmegaConf.merge(OmegaConf.structured(cls), values)
    except OmegaConfBaseException as error:
        path = error.full_key or str(error.key)
        value: Any = values
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        name = path.partition(".")[0].partition("[")[0]
        wanted = _words(hints[name]) if name in hints else error.msg
        raise SettingsError(f"{prefix}{path}={_shown(value)}: must be {wanted}") from error
    try:
        settings: Any = OmegaConf.to_object(merged)
        return dataclasses.replace(settings, **nested) if nested else settings
    except SettingsError as error:
        message = str(error)
        raise SettingsError(message if message.startswith(prefix) else prefix + message) from error


def _nests(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or any(dataclasses.is_dataclass(part) for part in typing.get_args(hint))


def _nested(hint: Any, value: Any, key: str) -> Any:
    """Settings within settings: OmegaConf cannot merge into frozen ones."""
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key}={_shown(value)}: must be a group of keys")
    if isinstance(hint, type):
        return typed(hint, value, key)
    item = typing.get_args(hint)[1]
    return {str(name): _nested(item, part, f"{key}.{name}") for name, part in value.items()}


def signature_class(key: str, target: str) -> type | None:
    """The settings class of a class of another package, or of a torch-free one of this package.

    If its constructor has a parameter `settings` annotated with a settings class, that one (algorithms); otherwise one
    made from its keyword parameters. None if it takes any keyword.
    """
    module, _, name = target.rpartition(".")
    try:
        made = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(made).parameters.values()
    except (Exception, SystemExit) as error:  # the module's code may raise anything when it is imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class ({reason})") from error
    settings = typing.get_type_hints(made.__init__).get("settings") if isinstance(made, type) else None
    if isinstance(settings, type) and dataclasses.is_dataclass(settings):
        return settings
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return _class_of(made, name)


@functools.lru_cache(maxsize=64)
def _class_of(made: Any, name: str) -> type:
    parameters = inspect.signature(made).parameters.values()
    hints = typing.get_type_hints(made if inspect.isfunction(made) else made.__init__)
    fields = [
        (parameter.name, _supported(hints.get(parameter.name, Any)), field(default=parameter.default))
        for parameter in parameters
        if parameter.default is not parameter.empty
    ]
    return dataclasses.make_dataclass(name, fields)


def _supported(hint: Any) -> Any:
    """The hint as OmegaConf knows it: a sequence is a list."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return functools.reduce(operator.or_, (_supported(part) for part in typing.get_args(hint)))
    if typing.get_origin(hint) is Sequence:
        return list[typing.get_args(hint)[0]]
    return hint


def unknown_key(full: str, name: str, known: Iterable[str], parent: str) -> str:
    """The message for a key that is none of `known`, the keys of `parent` ("" is the top)."""
    known = sorted(known)
    prefix = f"{parent}." if parent else ""
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {prefix}{close[0]}? " if close else ""
    if not known:
        return f"{full}: unknown key; {parent or 'the top'} has none yet: +{full}=... adds one"
    return f"{full}: unknown key; {meant}{parent or 'at the top there'} {'has' if parent else 'are'} {', '.join(known)}"


def _number(value: Any, hint: Any, key: str) -> Any:
    """Numbers as the field wants them: infinity in each spelling; no fraction cut off; no negative zero."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, str) and float in options:
        sign = -1.0 if value.strip().startswith("-") else 1.0
        name = value.strip().lstrip("+-").lstrip(".").lower()
        value = sign * NOT_FINITE[name] if name in NOT_FINITE else value
    if value is False and isinstance(hint, type) and issubclass(hint, enum.Enum) and "off" in hint.__members__:
        return "off"  # YAML reads a bare off as false
    if options == (bool,) and isinstance(value, int) and value not in (0, 1):
        raise SettingsError(f"{key}={value}: must be {_words(hint)}")
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


MAIN_NUMBERS = {
    "gate": "gate.delta",
    "budget": "budget.tokens",
    "eval": "eval.every",
    "probe": "probe.every",
    "recorder": "recorder.every",
}
"""Group -> the number in it that is meant by a number for the group."""


LAUNCHER_EXTRAS = {
    "joblib": "joblib",
    "submitit_local": "slurm",
    "submitit_slurm": "slurm",
    "ray": "ray",
}
"""Hydra's other launchers -> the extra that installs them."""


def likely(key: str, value: Any) -> str:
    """The end of a message about a number that was given to a group: what may be meant; else nothing."""
    try:
        float(str(value))
    except ValueError:
        return ""
    return f"; did you mean {MAIN_NUMBERS[key]}={value}?" if key in MAIN_NUMBERS else ""


def refuse_options(arguments: Iterable[str]) -> None:
    """For commands that take overrides only.

    Raises:
        SettingsError: naming an argument that starts with "-".
    """
    for text in arguments:
        if text.startswith("-"):
            raise SettingsError(f"{text}: no such option; only key=value and --help are taken here")


def explain(error: Exception) -> str:
    """What Hydra or OmegaConf refused, in one message; for an unknown key, with the keys that there are."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OmegaConfBaseException) and cause.full_key and isinstance(cause.parent_node, DictConfig):
        full = cause.full_key
        parent, _, name = full.rpartition(".")
        known = [str(key) for key in cause.parent_node if key != "hydra"]
        if name not in known:
            return unknown_key(full, name, known, parent)
    if isinstance(error, MissingConfigException):
        text = str(error).partition("Config search path:")[0].strip()
        launcher = re.search(r"'hydra/launcher/(\w+)'", text)
        extra = LAUNCHER_EXTRAS.get(launcher[1]) if launcher else None
        if launcher and extra:
            return f"hydra/launcher={launcher[1]} needs an extra: pip install 'rti-exp[{extra}]'\n{text}"
        missing = re.search(r"'(\w+)/([^']+)'", text)
        return text + (likely(*missing.groups()) if missing else "")
    return "\n".join(dict.fromkeys(str(part) for part in (error, error.__cause__) if part is not None))
