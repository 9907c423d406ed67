"""Database records that are copied when they are read, so that an episode need not copy thousands of them."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Mapping, ValuesView
from typing import Any


class CopyOnRead(dict[str, Any]):
    """A dict over shared records. The first read of a record copies it; the shared record never changes.

    Code that reads a dict from C, such as a serializer, sees the same contents, copied or not.
    """

    def __init__(self, shared: Mapping[str, Any]) -> None:
        super().__init__(shared)
        self._shared = set(shared)

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key in self._shared:
            value = copy.deepcopy(value)
            self[key] = value
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._shared.discard(key)
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def values(self) -> ValuesView[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ItemsView(self)

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            _ = self[key]
        return super().pop(key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


def fresh_copy(database: Any) -> Any:
    """A database (a pydantic model) to work on; the original never changes."""
    fields = type(database).model_fields
    values = {name: getattr(database, name) for name in fields}
    if not all(isinstance(value, dict) for value in values.values()):
        return database.model_copy(deep=True)
    return database.model_copy(update={name: CopyOnRead(value) for name, value in values.items()})
