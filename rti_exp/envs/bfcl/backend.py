"""The simulated APIs of one conversation: their instances, calls by name, and a fingerprint of their state."""

from __future__ import annotations

import copy
import datetime
import decimal
import importlib
import inspect
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rti_exp.envs.bfcl.calls import Call, check_size

_BANNED = frozenset({"kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run"})
"""Names that the benchmark's runner rejects."""


class Backend:
    """Instances of a task's classes in the task's initial state. Backends share no state.

    Args:
        entry: the task as the benchmark ships it.
        long_context: whether the APIs pad their answers, as in the category of that name.
    """

    def __init__(self, entry: Mapping[str, Any], *, long_context: bool) -> None:
        from bfcl_eval.constants.executable_backend_config import (  # pyright: ignore[reportMissingImports]
            CLASS_FILE_PATH_MAPPING,
            STATELESS_CLASSES,
        )

        self.instances: dict[str, Any] = {}
        for name in entry["involved_classes"]:
            instance = getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in STATELESS_CLASSES:
                scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
                instance._load_scenario(scenario, long_context=long_context)
            self.instances[name] = instance
        # As in the benchmark's runner: the last class wins for equal names, and hidden tools can be called.
        self._methods = {
            name: method
            for instance in self.instances.values()
            for name, method in inspect.getmembers(instance, predicate=inspect.ismethod)
            if not name.startswith("_")
        }

    def call(self, call: Call) -> str:
        """The API's answer as text. A wrong call gets the error text of the benchmark's runner."""
        try:
            if call.name in _BANNED:
                raise ValueError(f"Function call {call.name} is not allowed.")
            if call.name not in self._methods:
                raise NameError(f"name {call.name!r} is not defined")
            check_size(call)
            positional, arguments = copy.deepcopy(
                (call.positional, dict(call.arguments))
            )  # the APIs keep and change their arguments
            with decimal.localcontext():  # an API sets the precision of the whole process
                return _text(self._methods[call.name](*positional, **arguments))
        except Exception as error:  # a wrong argument may raise anything
            return f"Error during execution: {error}"

    def fingerprint(self) -> Any:
        """The full state as plain JSON, including random generators but not modification times."""
        return [[name, _plain(instance, {})] for name, instance in self.instances.items()]


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError):  # an API's number or object type
            return str(result)
    return str(result)


def _plain(value: Any, seen: dict[int, int]) -> Any:
    """Plain JSON of any value; a repeated object (a folder's parent) becomes its number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime.datetime):
        return "time"
    if isinstance(value, random.Random):
        return [str(part) for part in value.getstate()]
    if id(value) in seen:
        return f"object {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, Mapping):
        return [[_plain(key, seen), _plain(item, seen)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(item, seen)) for item in value)
    if isinstance(value, Sequence):
        return [_plain(item, seen) for item in value]
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _plain(vars(value), seen)]
    return str(value)
