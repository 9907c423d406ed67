"""What a sweep is called and how long it takes, from the whole of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.paths import assets_root
from rti_exp.sweep.display import measured_seconds_per_iteration
from rti_exp.sweep.overrides import study_name, swept_by


def multirun(overrides: Sequence[str]) -> DictConfig:
    OmegaConf.register_new_resolver("rti_exp.assets", lambda: str(assets_root()), replace=True)
    loader = ConfigLoaderImpl(create_config_search_path(str(assets_root() / "conf")))
    return loader.load_configuration("train", list(overrides), run_mode=RunMode.MULTIRUN)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["gate.delta=0,5", "seed=0,1", "hydra.sweeper.max_batch_size=1"], "gate.delta+seed"),
        (["corrector=self,none", "max_iterations=3"], "corrector"),
        (["+sweeps=delta_study", "group_size=4,8"], "gate.delta+seed+group_size"),
        (["seed=3"], "sweep"),
    ],
)
def test_the_name_is_that_of_the_whole_sweep(overrides: list[str], name: str) -> None:
    assert study_name(swept_by(multirun(overrides))) == name


def test_an_iteration_takes_what_was_counted(tmp_path: Path) -> None:
    assert measured_seconds_per_iteration(tmp_path) is None
    for name, seconds, state in (("a", 20.0, "done"), ("b", 60.0, "done"), ("c", 999.0, "failed"), ("d", 80.0, "done")):
        folder = tmp_path / name
        folder.mkdir()
        times = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-02T00:00:00+00:00"}
        status = {"state": state, "run_key": name, "iterations_done": 10, "compute": {"seconds": seconds}, **times}
        folder.joinpath("status.json").write_text(json.dumps(status))
    assert measured_seconds_per_iteration(tmp_path) == 6.0
