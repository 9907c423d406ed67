"""The config of `rti_exp.train`, composed outside of `hydra.main`: for the entry points that run no job."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rti_exp.paths import assets_root
from rti_exp.secrecy import refuse_secret_arguments
from rti_exp.settings import SettingsError
from rti_exp.typed import likely


def composed(overrides: Sequence[str]) -> DictConfig:
    """
    Raises:
        SettingsError: a number in the place of a group's option; a secret.
        HydraException, OmegaConfBaseException: other bad overrides.
    """
    refuse_secret_arguments(overrides)
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    try:
        with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
            return compose("train", overrides=list(overrides))
    except ValueError as error:  # Hydra's own, of `gate=5`
        hints = [likely(*text.partition("=")[::2]) for text in overrides]
        raise SettingsError(str(error) + next(filter(None, hints), "")) from error
