"""Fixtures that several parts use: a composed config, and a random policy in a folder."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.paths import assets_root

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("WANDB_SILENT", "true")


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """composed("gate.delta=5") is the config that `python -m rti_exp.train gate.delta=5` would see."""
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)

    @functools.cache
    def once(overrides: tuple[str, ...], return_hydra_config: bool) -> DictConfig:
        with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
            return compose("train", overrides=list(overrides), return_hydra_config=return_hydra_config)

    def make(*overrides: str, return_hydra_config: bool = False) -> DictConfig:
        return copy.deepcopy(once(overrides, return_hydra_config))

    return make


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model with a tokenizer, as a transformers folder."""
    from tests.support.fakes import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("policy")
    tokenizer = tiny_tokenizer()
    tiny_model(sharpen=1.0, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
