"""The request of an evaluation, read and checked from command-line arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rti_exp.config.check import check, check_stored
from rti_exp.config.compose import composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.paths import assets_root
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.remote_models import check_endpoints, endpoints
from rti_exp.experiment.trainer import check_accelerator
from rti_exp.runs import read_config
from rti_exp.runs.find import NotFound, find_run

REQUEST_KEYS = ("run", "checkpoint", "out", "shard")
"""Keys of the request; the others are keys of rti_exp.train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """The weights to evaluate, and where the rollouts go.

    Attributes:
        run: The run directory, if a run is evaluated.
        out: None for a folder named after the evaluation.
        shard: (number, number of shards).
    """

    config: Config
    run: Path | None
    checkpoint: Path | None
    out: Path | None
    shard: tuple[int, int]


def read_request(arguments: Sequence[str]) -> EvaluationRequest:
    """
    Raises:
        SettingsError: an invalid argument.
        HydraException, OmegaConfBaseException: other invalid overrides.
    """
    refuse_options(arguments)
    pairs = [(text, *text.partition("=")[::2]) for text in arguments]
    named = {key: value for _, key, value in pairs if key in REQUEST_KEYS}
    overrides = [text for text, key, _ in pairs if key not in REQUEST_KEYS]
    if "run" in named and "checkpoint" in named:
        raise SettingsError("checkpoint: must be left out with run=, which uses the run's newest checkpoint")
    config, directory = _config(named.get("run"), overrides)
    checkpoint = Path(named["checkpoint"]).expanduser() if "checkpoint" in named else None
    if checkpoint is not None and not checkpoint.is_file():
        raise SettingsError(f"checkpoint={named['checkpoint']!r}: must be a file from a run's checkpoints/")
    if checkpoint is not None and isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("checkpoint: must be left out with policy=remote")
    shard = _shard(named.get("shard", "0/1"))
    _check(config, of_run=directory is not None)
    return EvaluationRequest(
        config=config,
        run=directory,
        checkpoint=checkpoint,
        out=Path(named["out"]).expanduser() if named.get("out") else None,
        shard=shard,
    )


def _check(config: Config, *, of_run: bool) -> None:
    """Check everything that can be known before anything slow starts."""
    if config.evaluation.tasks == 0:
        raise SettingsError("eval.tasks=0: must be an integer >= 1; this command only evaluates")
    if isinstance(config.policy, RemotePolicySettings):
        check_endpoints(endpoints(config), config.reweight.scorer)
        return
    check_parts(config, training=False)
    try:
        check_accelerator(config.trainer.accelerator)
    except SettingsError as error:
        raise SettingsError(f"{error}{' (of this run: trainer.accelerator=cpu)' if of_run else ''}") from error


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise SettingsError(f"shard={text!r}: must be NUMBER/COUNT, the first shard is 0/COUNT")
    return int(match[1]), int(match[2])


def _config(run: str | None, overrides: Sequence[str]) -> tuple[Config, Path | None]:
    """The config to evaluate with, and the run directory if a run is evaluated."""
    if run is None:
        return check(composed(overrides)), None
    groups = {path.name for path in (assets_root() / "conf").iterdir() if path.is_dir()}
    for text in overrides:
        key = text.partition("=")[0].lstrip("+")
        if key in groups:
            raise SettingsError(f"{text}: with run= the run's {key} is fixed; set single keys of it ({key}.KEY=...)")
    roots = [text.partition("=")[2] for text in overrides if text.startswith("runs_root=")]
    directory = run_directory(run, Path((roots or ["runs"])[-1]).expanduser())
    stored = read_config(directory)
    if not stored:
        raise SettingsError(f"run={run!r}: must be a run directory; there is no {directory / 'config.yaml'}")
    merged = OmegaConf.merge(OmegaConf.create(stored), *map(_override, overrides))
    assert isinstance(merged, DictConfig)
    return check_stored(merged), directory


def _override(text: str) -> DictConfig:
    """One `key=value`. A plus before the key is ignored."""
    try:
        return OmegaConf.from_dotlist([text.lstrip("+")])
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise SettingsError(f"{text}: cannot be read; must be key=value, the value as in YAML") from error


def run_directory(name: str, runs_root: Path) -> Path:
    """The directory of a run, given as a path, STUDY/KEY or the start of a key.

    Raises:
        SettingsError: no run, or several runs, have that name.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    try:
        return find_run(runs_root, name).directory
    except NotFound as error:
        reason = str(error).replace("--runs-root", "runs_root=")
        raise SettingsError(
            f"run={name!r}: must be a run directory, STUDY/KEY or the start of a key; {reason}"
        ) from error
