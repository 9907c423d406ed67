"""The config of `rti_exp.train`, composed outside of `hydra.main`: for the entry points that run no job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.conversion import explain, likely
from rti_exp.config.paths import assets_root
from rti_exp.config.secrets import refuse_secret_arguments
from rti_exp.config.settings import SettingsError

CONFIG_ERRORS = (SettingsError, HydraException, OmegaConfBaseException)
"""What composing and checking a config raises for one that is bad."""
BAD_CONFIG = 2
"""The exit code for it."""


def bad_config(error: Exception) -> int:
    """Prints what is wrong with the config. Returns the exit code."""
    message = str(error) if isinstance(error, SettingsError) else explain(error)
    print(f"bad config: {message}", file=sys.stderr)
    return BAD_CONFIG


def composed(overrides: Sequence[str], root: str = "train") -> DictConfig:
    """The config `conf/<root>.yaml` with these overrides.

    Raises:
        SettingsError: a number in the place of a group's option; a secret.
        HydraException, OmegaConfBaseException: other bad overrides.
    """
    refuse_secret_arguments(overrides)
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None  # a job's Hydra composes no second config
    try:
        with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
            return compose(root, overrides=list(overrides))
    except ValueError as error:  # Hydra's own, of `gate=5`
        hints = [likely(*text.partition("=")[::2]) for text in overrides]
        raise SettingsError(str(error) + next(filter(None, hints), "")) from error
    finally:
        GlobalHydra.instance().hydra = outer
