"""The W&B sweep of the delta study: its parameters are config keys, and an agent's command line composes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from rti_exp.config.check import check

PATH = Path(__file__).resolve().parents[2] / "docs" / "wandb_delta_study.yaml"
Composed = Callable[..., DictConfig]


@pytest.fixture(scope="module")
def sweep() -> dict[str, Any]:
    return yaml.safe_load(PATH.read_text(encoding="utf-8"))


def agent_arguments(sweep: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """What W&B's agent puts in place of ${args_no_hyphens}."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    command = {"args": {name: {"value": value} for name, value in values.items()}}
    return create_sweep_command_args(command)["args_no_hyphens"]


def grid(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = sweep["parameters"]
    values = [node.get("values", [node.get("value")]) for node in parameters.values()]
    return [dict(zip(parameters, combination, strict=True)) for combination in itertools.product(*values)]


def test_parameters_are_config_keys(sweep: dict[str, Any], composed: Composed) -> None:
    config = composed()
    for name in sweep["parameters"]:
        assert OmegaConf.select(config, name, default="missing") != "missing", name


def test_the_grid_is_the_delta_study(sweep: dict[str, Any], composed: Composed) -> None:
    params = composed("+sweeps=delta_study", return_hydra_config=True).hydra.sweeper.params
    for name in ("gate.delta", "seed"):
        assert ",".join(map(str, sweep["parameters"][name]["values"])) == str(params[name])


def test_an_agents_command_line_composes(sweep: dict[str, Any], composed: Composed) -> None:
    assert sweep["command"] == ["${env}", "${interpreter}", "-m", "rti_exp.train", "${args_no_hyphens}"]
    points = grid(sweep)
    assert len(points) == 35
    assert agent_arguments(sweep, points[0])[:2] == ["gate.delta=0", "seed=0"]
    last = agent_arguments(sweep, points[-1])
    assert last == ["gate.delta=inf", "seed=4", "study=wandb_delta_study", "logger.mode=online"]
    config = check(composed(*last))
    assert (config.plain["gate"]["delta"], config.run.seed, config.top.study) == (math.inf, 4, "wandb_delta_study")
    keys = {check(composed(*agent_arguments(sweep, points[place]))).key for place in (0, 1, 5, 34)}
    assert len(keys) == 4
