"""Packages that only some environments need: checked before anything starts, imported late."""

from __future__ import annotations

import importlib.util

from rti_exp.config.settings import SettingsError


def require(modules: tuple[str, ...], *, purpose: str, install: str) -> None:
    """Check that packages are installed, without importing them.

    Args:
        modules: import names.
        purpose: what needs the packages, for the error message ("env=bfcl_base").
        install: the command that installs them.

    Raises:
        SettingsError: a package is missing; the message contains the command.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(f"{purpose} needs the package {missing[0]}: {install}")
