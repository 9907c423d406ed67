"""No secret in a config: what is refused before anything is composed, written or logged, and never repeated.

A secret is named by its environment variable. A value is taken for a secret if its key is called like one, if it
holds the value of an environment variable that is called like one, or if it has the shape of a well-known token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rti_exp.config.settings import SettingsError
from rti_exp.runs.redaction import secret_values

SECRET_NAME = re.compile(r"api_?key|secret|password|(^|_)token$", re.IGNORECASE)
ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-|hf_|gh[pousr]_|github_pat_|gsk_|xox[abprs]-|AKIA|AIza|wandb_v1_)[A-Za-z0-9_-]{16,}"
    r"|://[^/\s@]+:[^/\s@]+@"
)
"""OpenAI, Hugging Face, GitHub, Groq, Slack, AWS, Google, W&B; and a password in a URL."""


def refuse_secrets(node: Any, path: str = "") -> None:
    """
    Raises:
        SettingsError: there is a secret in the config `node`; the message names its key, and does not show it.
    """
    if isinstance(node, Mapping):
        for name, value in node.items():
            full = f"{path}.{name}" if path else str(name)
            _refuse_value(full, str(name), value)
            refuse_secrets(value, full)
    elif isinstance(node, list | tuple):
        for index, item in enumerate(node):
            refuse_secrets(item, f"{path}.{index}")
    elif isinstance(node, str):
        _refuse_text(path, node)


def refuse_secret_arguments(arguments: Iterable[str]) -> None:
    """The same for `key=value` arguments, before Hydra reads them, and keeps them for the record.

    Raises:
        SettingsError: as above.
    """
    for argument in arguments:
        key, equals, value = argument.partition("=")
        name = key.lstrip("+~").rpartition(".")[2]
        if equals:
            _refuse_value(key.lstrip("+~"), name, value.strip("'\""))
        _refuse_text(key.lstrip("+~") if equals else "an argument", argument)


def _refuse_value(full: str, name: str, value: Any) -> None:
    given = value is not None and not isinstance(value, Mapping | list | tuple)
    if not (SECRET_NAME.search(name) and given) or value in ("", "null"):
        return
    if not (isinstance(value, str) and all(ENVIRONMENT_NAME.fullmatch(one) for one in value.split(","))):
        raise SettingsError(
            f"{_without_secrets(full)}: must be the NAME of an environment variable (capitals, digits, _) that holds "
            "the secret; the value itself is never read from the config (and is not shown here)"
        )


def _refuse_text(key: str, text: str) -> None:
    for name, value in secret_values().items():
        if value in text:
            raise SettingsError(
                f"{_without_secrets(key)}: holds the value of the environment variable {name}, a secret; it would be "
                "written into files (it is not shown here)"
            )
    if TOKEN.search(text):
        raise SettingsError(
            f"{_without_secrets(key)}: looks like a secret, which would be written into files (it is not shown here); "
            "put it into an environment variable, and give that one's name where a key is asked for"
        )


def _without_secrets(key: str) -> str:
    hidden = any(value in key for value in secret_values().values()) or TOKEN.search(key)
    return "a key" if hidden else key
