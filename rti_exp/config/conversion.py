"""Plain config data into typed settings objects, with errors that name the key and what would be right."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import importlib
import inspect
import itertools
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from hydra.errors import MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import AllowInfNan, ValidationError

from rti_exp.config.fields import bare, hints_of, is_settings, marks, settings_class
from rti_exp.config.settings import SettingsError

Settings = TypeVar("Settings")

NOT_FINITE = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}


def typed(cls: type[Settings], node: Mapping[str, Any], key: str) -> Settings:
    """`node` as a settings object; `key` is the node's full key ("" at the top).

    Raises:
        SettingsError: an unknown or missing key, a wrong type, or a value that `cls` refuses.
    """
    values = _normal(cls, node)
    try:
        return cls(**values)
    except ValidationError as error:
        raise SettingsError(_message(cls, error, key)) from error


def _normal(hint: Any, value: Any) -> Any:
    """Numbers as the field expects them: each spelling of infinity, no negative zero, no boolean as a number."""
    hint = bare(hint)
    if is_settings(hint) and isinstance(value, Mapping):
        hints = hints_of(hint)
        return {str(name): _normal(hints.get(str(name)), part) for name, part in value.items()}
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        return {str(name): _normal(typing.get_args(hint)[1], part) for name, part in value.items()}
    types_ = _types(hint)
    if isinstance(value, bool) and bool not in types_ and {int, float} & set(types_):
        return _Boolean(value)
    if isinstance(value, str) and float in types_:
        sign = -1.0 if value.strip().startswith("-") else 1.0
        name = value.strip().lstrip("+-").lstrip(".").lower()
        value = sign * NOT_FINITE[name] if name in NOT_FINITE else value
    if value is False and any(isinstance(item, type) and issubclass(item, enum.Enum) for item in types_):
        return "off"  # YAML reads a bare off as false
    return value + 0.0 if isinstance(value, float) else value


@dataclasses.dataclass(frozen=True)
class _Boolean:
    """true or false where a number is expected: pydantic would take it for 1 or 0."""

    value: bool

    def __repr__(self) -> str:
        return repr(self.value)


def _types(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a hint, without what `Annotated` adds."""
    hint = bare(hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(itertools.chain.from_iterable(map(_types, typing.get_args(hint))))
    return (hint,)


def _message(cls: Any, error: ValidationError, key: str) -> str:
    """The first of pydantic's errors in our words; an unknown key before a missing one, which it may be meant for."""
    errors = error.errors(include_url=False)
    first = next((entry for entry in errors if entry["type"] == "unexpected_keyword_argument"), errors[0])
    path, parent = key, cls
    hint: Any = cls
    for step in map(str, first["loc"]):
        if is_settings(bare(hint)) and step in hints_of(bare(hint)):
            parent, hint = bare(hint), hints_of(bare(hint))[step]
        elif typing.get_origin(bare(hint)) is dict:
            parent, hint = hint, typing.get_args(bare(hint))[1]
        elif first["type"] == "unexpected_keyword_argument":
            parent, hint = bare(hint), None
        else:
            break  # an item of a list, or pydantic's name for an alternative of a union
        path = f"{path}.{step}" if path else step
    match first["type"]:
        case "unexpected_keyword_argument":
            return unknown_key(path, str(first["loc"][-1]), hints_of(parent), path.rpartition(".")[0])
        case "missing":
            return f"{path}: missing; must be {words(hint)}"
        case "value_error" if is_settings(bare(hint)):  # of several fields
            prefix = f"{path}." if path else ""
            return f"{prefix}{first.get('ctx', {})['error']}"
        case "value_error":
            return f"{path}={_shown(first['input'])}: must be {first.get('ctx', {})['error']}"
    return f"{path}={_shown(first['input'])}: must be {words(hint)}"


def words(hint: Any) -> str:
    """A type and its range in words."""
    if typing.get_origin(hint) is Annotated:
        return _range(typing.get_args(hint)[0], marks(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(map(words, typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(member.name for member in hint)
    if typing.get_origin(hint) in (list, Sequence):
        return f"a list ({words(typing.get_args(hint)[0])} each)"
    simple = {float: "a number, or inf", int: "an integer", bool: "true or false", str: "text", type(None): "null"}
    return simple.get(hint, "a group of keys")


def _range(hint: Any, marks: Sequence[Any]) -> str:
    least = next((mark for mark in marks if isinstance(mark, Ge | Gt)), None)
    most = next((mark for mark in marks if isinstance(mark, Le | Lt)), None)
    if hint not in (int, float) or (least is None and not any(isinstance(mark, AllowInfNan) for mark in marks)):
        return words(hint)
    noun = "an integer" if hint is int else "a number"
    low = "" if least is None else f">= {least.ge}" if isinstance(least, Ge) else f"> {least.gt}"
    if most is not None:
        high = f"{most.le}]" if isinstance(most, Le) else f"{most.lt})"
        return f"{noun} in {'[' if isinstance(least, Ge) else '('}{low.split()[-1]}, {high}"
    if hint is float and any(isinstance(mark, AllowInfNan) for mark in marks):
        return f"a finite number {low}".rstrip()
    return f"{noun} {low}" + (", or inf" if hint is float else "")


def signature_class(key: str, target: str, given: Collection[str] = ()) -> type | None:
    """The settings class for a class of another package, or for a torch-free one of this package.

    If its constructor has a parameter `settings` annotated with a settings class, that one (algorithms). Otherwise one
    made from its parameters, without those that the builder passes itself (`given`). None if it takes any keyword.
    """
    module, _, name = target.rpartition(".")
    try:
        part = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(part).parameters.values()
    except (Exception, SystemExit) as error:  # the module's code may raise anything when it is imported
        reason = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}._target_={target!r}: must be the full name of a class ({reason})") from error
    settings = typing.get_type_hints(part.__init__).get("settings") if isinstance(part, type) else None
    if isinstance(settings, type) and dataclasses.is_dataclass(settings):
        return settings
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return _class_of(part, name, frozenset(given))


@functools.lru_cache(maxsize=64)
def _class_of(part: Any, name: str, given: frozenset[str]) -> type:
    parameters = inspect.signature(part).parameters.values()
    hints = typing.get_type_hints(part if inspect.isfunction(part) else part.__init__, include_extras=True)
    fields = [
        (parameter.name, hints.get(parameter.name, Any), dataclasses.field(default=parameter.default))
        if parameter.default is not parameter.empty
        else (parameter.name, hints.get(parameter.name, Any))
        for parameter in parameters
        if parameter.name not in given
    ]
    return settings_class(dataclasses.make_dataclass(name, fields, kw_only=True, frozen=True))


def unknown_key(full: str, name: str, known: Iterable[str], parent: str) -> str:
    """The message for a key that is none of `known`, the keys of `parent` ("" is the top)."""
    known = sorted(known)
    prefix = f"{parent}." if parent else ""
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {prefix}{close[0]}? " if close else ""
    if not known:
        return f"{full}: unknown key; {parent or 'the top'} has none yet: +{full}=... adds one"
    return f"{full}: unknown key; {meant}{parent or 'at the top there'} {'has' if parent else 'are'} {', '.join(known)}"


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
