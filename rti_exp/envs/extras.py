"""Packages that only some environments need: looked for before anything starts, imported late."""

from __future__ import annotations

import importlib.util

from rti_exp.config.settings import SettingsError


def require(modules: str | tuple[str, ...], *, purpose: str, install: str) -> None:
    """Check that packages are installed, without importing them.

    Args:
        modules: their import names.
        purpose: what needs them, for the message ("env=bfcl_base").
        install: the command that installs them.

    Raises:
        SettingsError: one is missing; the message has the command.
    """
    names = (modules,) if isinstance(modules, str) else modules
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(f"{purpose} needs the package {missing[0]}: {install}")
