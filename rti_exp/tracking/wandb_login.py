"""Whether W&B has a login. The user is never prompted for one."""

from __future__ import annotations

import inspect
import os

NO_LOGIN = "there is no W&B login: set the environment variable WANDB_API_KEY or run `wandb login`"


def has_login() -> bool:
    """Whether W&B has a key from the environment or from an earlier login."""
    import wandb

    if os.environ.get("WANDB_API_KEY"):
        return True
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False))  # pyright: ignore[reportCallIssue]
    return bool(wandb.api.api_key)  # versions before prompt=
