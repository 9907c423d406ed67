"""The values in conf/ as settings objects."""

from __future__ import annotations

import dataclasses

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from rti_exp.config.check import GROUPS, check
from rti_exp.config.defaults import SOURCES, default_settings, endpoint_settings, node_at
from rti_exp.config.fields import hints_of
from rti_exp.config.paths import assets_root
from rti_exp.config.settings import GateSettings, RolloutSettings, SettingsError


@pytest.mark.parametrize("cls", SOURCES, ids=lambda cls: cls.__name__)
def test_settings_have_no_defaults_of_their_own(cls: type) -> None:
    """A second default would have to be kept equal to the one in conf/."""
    assert hints_of(cls)
    for entry in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        assert entry.default is dataclasses.MISSING, entry.name
        assert entry.default_factory is dataclasses.MISSING, entry.name
    default_settings(cls)


def test_the_groups_of_the_default_config(composed) -> None:
    config = check(composed())
    for attribute, cls in GROUPS.values():
        assert getattr(config, attribute) == default_settings(cls)


def test_changes_are_validated() -> None:
    assert default_settings(RolloutSettings, max_tokens=4).max_tokens == 4
    with pytest.raises(SettingsError, match=r"gate\.delta=-1: must be a number >= 0, or inf"):
        default_settings(GateSettings, delta=-1)
    with pytest.raises(SettingsError, match=r"gate\.dleta: unknown key; did you mean gate\.delta\?"):
        default_settings(GateSettings, dleta=1)


def test_an_endpoint_takes_its_other_keys_from_conf() -> None:
    settings = endpoint_settings({"model": "m", "attempts": 2}, "env.judge")
    assert (settings.model, settings.attempts, settings.failure_window, settings.cache) == ("m", 2, 50, None)
    with pytest.raises(SettingsError, match=r"env\.judge\.attempts=0: must be an integer >= 1"):
        endpoint_settings({"attempts": 0}, "env.judge")


def test_a_job_of_hydra_can_read_the_defaults() -> None:
    """`env.user_model` and `env.judge` are read inside a job."""
    node_at.cache_clear()
    with initialize_config_dir(str(assets_root() / "conf"), version_base="1.3"):
        job = GlobalHydra.instance().hydra
        assert endpoint_settings({"model": "m"}, "env.judge").model == "m"
        assert GlobalHydra.instance().hydra is job is not None
    assert not GlobalHydra.instance().is_initialized()
