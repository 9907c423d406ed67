"""An environment in which W&B has no login."""

from __future__ import annotations

import os
from pathlib import Path

from rti_exp.config.paths import PACKAGE


def without_login(home: Path) -> dict[str, str]:
    """Environment variables for a separate process. W&B remembers a key that a process has seen."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"HOME": str(home), "NETRC": str(home / "netrc"), "XDG_CONFIG_HOME": str(home)}
    return environment | {"PYTHONPATH": str(PACKAGE.parent)}
