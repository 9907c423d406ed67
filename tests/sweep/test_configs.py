"""The quick way to a job's config gives what composing and checking it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.check import check
from rti_exp.config.compose import composed
from rti_exp.config.settings import SettingsError
from rti_exp.sweep.configs import SweepConfigs

JOBS = (
    ("gate.delta=0", "seed=0"),
    ("gate.delta=5", "seed=1"),
    ("gate.delta=5.0", "seed=1"),
    ("gate.delta=inf", "seed=2"),
    ("gate.delta=.inf", "seed=2"),
    ("gate.delta='20'", "seed=3"),
    ("seed=3", "gate.delta=1"),
    ("gate.delta=5", "seed=1", "gate.delta=7"),
    ("corrector=none", "seed=0"),
    ("corrector=none", "seed=4"),
    ("size=quick", "seed=0"),
    ("size=full", "seed=0"),
    ("experiment=leaks", "seed=1"),
    ("experiment=leaks", "seed=2"),
    ("verifier.checks=[gold]", "seed=2"),
    ("env.families=[nav_easy]", "seed=2"),
    ("env.families=null", "seed=2"),
    ("algorithm.normalize_std=true", "seed=2"),
    ("algorithm.normalize_std=false", "seed=2"),
    ("reweight.scorer=off", "seed=1"),
    ("reweight.scorer=source", "seed=1"),
    ("study=${size}-x", "seed=1"),
    ("study=a", "seed=1"),
    ("study=b", "seed=1"),
)


def test_the_same_configs() -> None:
    configs = SweepConfigs(composed)
    for overrides in JOBS:
        usual = check(composed(overrides))
        quick = configs.checked(overrides)
        assert quick == usual, overrides
        assert repr(quick.plain) == repr(usual.plain), overrides  # 1 is no 1.0


def test_jobs_of_a_kind_are_composed_once() -> None:
    asked: list[tuple[str, ...]] = []

    def compose(overrides: Sequence[str]) -> DictConfig:
        asked.append(tuple(overrides))
        return composed(overrides)

    configs = SweepConfigs(compose)
    found = [configs.checked((f"gate.delta={n % 7}", f"seed={n}", "size=quick")).run.seed for n in range(20)]
    assert found == list(range(20))
    assert asked == [("gate.delta=0", "seed=0", "size=quick")]
    configs.composed(("gate.delta=3", "seed=30", "size=quick"))
    configs.checked(("gate.delta=0", "seed=0", "size=full"))
    assert len(asked) == 2


def test_a_config_made_of_other_keys_is_always_composed() -> None:
    def compose(overrides: Sequence[str]) -> DictConfig:
        config = composed(overrides)
        OmegaConf.update(config, "rollout.max_tokens", "${group_size}")
        return config

    configs = SweepConfigs(compose)
    assert [configs.checked((f"group_size={n}",)).rollout.max_tokens for n in (4, 6)] == [4, 6]


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (("gate.delta=-1", "seed=1"), SettingsError),
        (("gate.delta=nan", "seed=1"), SettingsError),
        (("gate.delta=5", "seed=x"), SettingsError),
        (("gate.delta=5", "seed=null"), SettingsError),
        (("gate.delta=5", "sede=1"), HydraException),
        (("gate=5", "seed=1"), SettingsError),
        (("tasks_per_iteration=100000", "seed=1"), SettingsError),
    ],
)
def test_bad_jobs_are_refused_after_good_ones_too(overrides: Sequence[str], error: type[Exception]) -> None:
    configs: Any = SweepConfigs(composed)
    configs.checked(("gate.delta=5", "seed=0"))
    configs.checked(("tasks_per_iteration=2", "seed=0"))
    with pytest.raises(error):
        configs.checked(overrides)
