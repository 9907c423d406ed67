"""No secret of the environment in what is written or shown: errors of environments and endpoints may repeat one.

A secret is the value of an environment variable that is called like one. This module imports no torch.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

SECRET_VARIABLE = re.compile(r"api_?key|secret|password|passwd|(^|_)(token|key|pat)$", re.IGNORECASE)
SHORTEST = 8
"""Characters: a shorter value of an environment variable may be any word."""
REDACTED = "[secret]"


def secret_values() -> dict[str, str]:
    """The environment variables whose names say that they hold a secret."""
    return {
        name: value
        for name, value in os.environ.items()
        if SECRET_VARIABLE.search(name) and len(value.strip()) >= SHORTEST
    }


def redacted(text: str) -> str:
    """The text without secrets, also where they are quoted for a URL or for JSON."""
    for form in _forms():
        text = text.replace(form, REDACTED)
    return text


def redacted_data(value: Any) -> Any:
    """JSON data with all its texts redacted; keys stay as they are."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: redacted_data(item) for key, item in value.items()}
    return [redacted_data(item) for item in value] if isinstance(value, list | tuple) else value


def holds_secret(text: str) -> bool:
    return any(form in text for form in _forms())


def redact_output() -> None:
    """From here on, what this process prints holds no secret: its errors, warnings and logs."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream.write, _RedactingWrite):
            stream.write = _RedactingWrite(stream.write)  # pyright: ignore[reportAttributeAccessIssue]


class _RedactingWrite:
    def __init__(self, write: Callable[[str], int]) -> None:
        self._write = write

    def __call__(self, text: str) -> int:
        return self._write(redacted(text))


def _forms() -> list[str]:
    """Each secret as it may stand in a text, longer ones first: one may hold another."""
    values = {value.strip() for value in secret_values().values()}
    forms = {
        form
        for value in values
        for form in (value, json.dumps(value)[1:-1], urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
    }
    return sorted(forms, key=len, reverse=True)
