"""Tasks and tools from the package `bfcl-eval`."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rti_exp.config.settings import SettingsError

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_TOOL_FILES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def _folder() -> Path:
    spec = importlib.util.find_spec("bfcl_eval")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data"


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except OSError as error:
        raise SettingsError(
            f"bfcl-eval has no file {path}: must be a version with BFCL v4, such as 2026.3.23"
        ) from error


@functools.cache
def entries(category: str) -> tuple[tuple[dict[str, Any], list[list[str]]], ...]:
    """(entry, calls of the reference for each user turn) of each of the 200 tasks, in the benchmark's order.

    Raises:
        SettingsError: the installed `bfcl-eval` does not ship them.
    """
    name = f"BFCL_v4_multi_turn_{category}.json"
    answers = {answer["id"]: answer["ground_truth"] for answer in _read(_folder() / "possible_answer" / name)}
    return tuple((entry, answers[entry["id"]]) for entry in _read(_folder() / name))


@functools.cache
def _tools(class_name: str) -> tuple[Mapping[str, Any], ...]:
    path = _folder() / "multi_turn_func_doc" / f"{_TOOL_FILES[class_name]}.json"
    return tuple(
        {"name": doc["name"], "description": doc["description"], "parameters": json_schema(doc["parameters"])}
        for doc in _read(path)
    )


def tools(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All tools of a task's classes without the excluded ones; including those that a later request adds."""
    excluded = set(entry.get("excluded_function", ()))
    return [tool for name in entry["involved_classes"] for tool in _tools(name) if tool["name"] not in excluded]


def json_schema(schema: Any) -> Any:
    """The benchmark's parameter schema as JSON schema: "dict" is "object", "float" is "number"."""
    if isinstance(schema, Mapping):
        return {
            key: _TYPES.get(value, value) if key == "type" and isinstance(value, str) else json_schema(value)
            for key, value in schema.items()
        }
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [json_schema(item) for item in schema]
    return schema
