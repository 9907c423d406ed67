"""A default in a settings class equals the default that the YAML sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import GROUPS, Config, check


@pytest.mark.parametrize(
    "node", ["top", "run", "algorithm", "engine", "probe", "validator", "corrector", "verifier", *GROUPS]
)
def test_class_and_yaml_have_the_same_defaults(composed: Callable[..., DictConfig], node: str) -> None:
    _assert_equal_defaults(check(composed()), node)


@pytest.mark.parametrize("option", ["algorithm=luffy", "algorithm=opd", "algorithm=sft", "engine=vllm"])
def test_class_and_yaml_of_other_options_have_the_same_defaults(
    composed: Callable[..., DictConfig], option: str
) -> None:
    corrector = ["corrector=none"] if option == "algorithm=opd" else []
    _assert_equal_defaults(check(composed(option, *corrector)), option.partition("=")[0])


def _assert_equal_defaults(config: Config, node: str) -> None:
    settings = getattr(config, GROUPS[node][0] if node in GROUPS else node)
    settings = getattr(settings, "options", settings)
    differing = {
        entry.name: (entry.default, getattr(settings, entry.name))
        for entry in dataclasses.fields(settings)
        if entry.default is not dataclasses.MISSING and entry.default != getattr(settings, entry.name)
    }
    assert not differing, f"{node}: (class, YAML) differ: {differing}"
