"""How settings are declared: frozen pydantic dataclasses whose fields name their type, range and part in the run key.

Settings have no defaults: the value of a key stands in `conf/`, and only there (`rti_exp.config.defaults`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, dataclass_transform

import pydantic.dataclasses
from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, AllowInfNan, ConfigDict

Cls = TypeVar("Cls", bound=type)

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
"""Infinity is allowed."""
NonNegative = Annotated[float, Ge(0)]
"""Infinity is allowed."""
FinitePositive = Annotated[float, Gt(0), AllowInfNan(False)]
FiniteNonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Share = Annotated[float, Ge(0), Le(1)]


def _nonblank(text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise ValueError("a text that is not blank")
    return text


Nonblank = AfterValidator(_nonblank)

VOLATILE = "volatile"
"""`Annotated[int, VOLATILE]`: excluded from the run key, because it cannot change the result of a run."""


@dataclass(frozen=True, slots=True)
class OutOfKeyAt:
    """`Annotated[int, OutOfKeyAt(0)]`: excluded from the run key at this value.

    For a key that was added when there were already runs: at this value a run is what it was before the key existed.
    """

    value: Any


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_class(cls: Cls) -> Cls:
    """A frozen, keyword-only dataclass that validates its fields.

    Its constructor raises pydantic.ValidationError, a ValueError. `rti_exp.config.conversion.typed` raises errors that
    name the config key.
    """
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, arbitrary_types_allowed=True)
    return pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=config)  # pyright: ignore[reportReturnType]


def hints_of(cls: type) -> dict[str, Any]:
    """The annotation of each field, `Annotated` kept."""
    return typing.get_type_hints(cls, include_extras=True)


def bare(hint: Any) -> Any:
    """A type without what `Annotated` adds."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def is_settings(value: Any) -> bool:
    """Whether `value` is a settings class, or an object of one."""
    return dataclasses.is_dataclass(value)


def marks(hint: Any) -> tuple[Any, ...]:
    """What `Annotated` adds to a type."""
    return getattr(hint, "__metadata__", ())


def identity_of(settings: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `plain`, the data of a settings object, that enters the run key; nested settings included."""
    identity: dict[str, Any] = {}
    for name, hint in hints_of(type(settings)).items():
        if VOLATILE in marks(hint):
            continue
        value = getattr(settings, name)
        part = identity_of(value, plain[name]) if is_settings(value) else plain[name]
        if not any(isinstance(mark, OutOfKeyAt) and mark.value == part for mark in marks(hint)):
            identity[name] = part
    return identity
