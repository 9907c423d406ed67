"""`python -m rti_exp.evaluate`: pass@k of a checkpoint, a policy or a remote model, without intervening.

    python -m rti_exp.evaluate run=runs/single/1ff1e526cb9e      the run's settings, its newest weights
    python -m rti_exp.evaluate run=single/1ff1e526cb9e           or run=1ff1e5: a key under runs_root, or its beginning
    python -m rti_exp.evaluate policy=tiny eval.tasks=84         a policy; any key of rti_exp.train
    python -m rti_exp.evaluate policy=hf policy.path=hub:Qwen/Qwen3-0.6B env=...
    python -m rti_exp.evaluate policy=... checkpoint=runs/single/1ff1e526cb9e/checkpoints/iteration-000060.pt
    python -m rti_exp.evaluate policy=remote policy.remote.base_url=https://api.openai.com/v1 \\
        policy.remote.model=gpt-4.1 policy.remote.api_key=OPENAI_API_KEY eval.temperature=0
    python -m rti_exp.evaluate run=... eval.samples=16 seed=1

    out=FOLDER     where the rollouts go (default: evaluations/NAME-KEY); the same command goes on where it was
                   interrupted, more eval.tasks or eval.samples add to what is there, fresh=true starts over
    shard=0/4      only every fourth task, from the first on; four such processes may run at once, in one folder

Exit code 0, 1 if too much of the infrastructure failed, 2 for a bad config, 130 if interrupted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from rti_exp.config.check import Config, check
from rti_exp.config.compose import CONFIG_ERRORS, bad_config, composed
from rti_exp.config.conversion import refuse_options
from rti_exp.config.paths import assets_root
from rti_exp.config.remote_settings import RemotePolicySettings
from rti_exp.config.settings import SettingsError
from rti_exp.evaluation.results import estimates
from rti_exp.evaluation.runner import Evaluation, EvaluationFailed, evaluate
from rti_exp.experiment.checks import check_parts
from rti_exp.experiment.remote_models import check_endpoints, endpoints
from rti_exp.experiment.trainer import check_accelerator
from rti_exp.runs import read_config
from rti_exp.runs.find import NotFound, find_run

OWN = ("run", "checkpoint", "out", "shard")
"""Keys that are this command's, not the config's."""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    from rti_exp.engines.base import EngineUnusable

    try:
        refuse_options(arguments)
        evaluation = _evaluation(arguments)
        _check(evaluation)
        row, folder = evaluate(evaluation)
    except CONFIG_ERRORS as error:
        return bad_config(error)
    except (EvaluationFailed, EngineUnusable) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    Console(soft_wrap=True).print(table(row, evaluation.config.evaluation.samples))
    for note in notes(evaluation.config):
        print(note)
    print(f"rollouts and numbers: {folder}")
    return 0


def _check(evaluation: Evaluation) -> None:
    """What can be known before anything slow starts."""
    config = evaluation.config
    if config.evaluation.tasks == 0:
        raise SettingsError("eval.tasks=0: must be an integer >= 1, there is nothing else to do here")
    if isinstance(config.policy, RemotePolicySettings):
        check_endpoints(endpoints(config), config.reweight.scorer)
        return
    check_parts(config, training=False)
    try:
        check_accelerator(config.trainer.accelerator)
    except SettingsError as error:
        of_run = "" if evaluation.run is None else " (of this run: trainer.accelerator=cpu)"
        raise SettingsError(f"{error}{of_run}") from error


def _evaluation(arguments: Sequence[str]) -> Evaluation:
    own = {key: value for key, _, value in (text.partition("=") for text in arguments) if key in OWN}
    rest = [text for text in arguments if text.partition("=")[0] not in OWN]
    if "run" in own and "checkpoint" in own:
        raise SettingsError("checkpoint: must be left out with run=, whose newest checkpoint is taken")
    config, directory = _config(own.get("run"), rest)
    checkpoint = Path(own["checkpoint"]).expanduser() if "checkpoint" in own else None
    if checkpoint is not None and not checkpoint.is_file():
        raise SettingsError(f"checkpoint={own['checkpoint']!r}: must be a file, as a run keeps them in checkpoints/")
    if checkpoint is not None and isinstance(config.policy, RemotePolicySettings):
        raise SettingsError("checkpoint: must be left out with policy=remote")
    return Evaluation(
        config=config,
        run=directory,
        checkpoint=checkpoint,
        out=Path(own["out"]).expanduser() if own.get("out") else None,
        shard=_shard(own.get("shard", "0/1")),
    )


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise SettingsError(f"shard={text!r}: must be NUMBER/OF_HOW_MANY, the first is 0")
    return int(match[1]), int(match[2])


def _config(run: str | None, rest: Sequence[str]) -> tuple[Config, Path | None]:
    """The config to evaluate with, and the run directory if a run is evaluated."""
    if run is None:
        return check(composed(rest)), None
    groups = {path.name for path in (assets_root() / "conf").iterdir() if path.is_dir()}
    for text in rest:
        key = text.partition("=")[0].lstrip("+")
        if key in groups:
            raise SettingsError(f"{text}: with run= the run's own {key} stands; set single keys of it ({key}.KEY=...)")
    roots = [text.partition("=")[2] for text in rest if text.startswith("runs_root=")]
    directory = _run_directory(run, Path((roots or ["runs"])[-1]).expanduser())
    stored = read_config(directory)
    if not stored:
        raise SettingsError(f"run={run!r}: must be a run directory; there is no {directory / 'config.yaml'}")
    merged = OmegaConf.merge(OmegaConf.create(stored), *map(_override, rest))
    assert isinstance(merged, DictConfig)
    return check(merged), directory


def _override(text: str) -> DictConfig:
    """One `key=value`, where a plus before the key changes nothing."""
    try:
        return OmegaConf.from_dotlist([text.lstrip("+")])
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise SettingsError(f"{text}: cannot be read; must be key=value, the value as in YAML") from error


def _run_directory(name: str, runs_root: Path) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    try:
        return find_run(runs_root, name).directory
    except NotFound as error:
        told = str(error).replace("--runs-root", "runs_root=")
        raise SettingsError(
            f"run={name!r}: must be a run directory, STUDY/KEY or the start of a key; {told}"
        ) from error


def table(row: Mapping[str, Any], samples: int) -> Table:
    """pass@1, pass@k and pass^k by family and over all, with 95% intervals over tasks."""
    shown = sorted({1, samples})
    lost = f", {row['infrastructure_failures']} lost to the infrastructure" if row["infrastructure_failures"] else ""
    title = f"held-out tasks after iteration {row['iteration']}: {row['rollouts']} of {row['wanted']} rollouts{lost}"
    made = Table(title=title, title_justify="left")
    columns = [*(f"pass@{k}" for k in shown), *(f"pass^{k}" for k in shown if k > 1)]
    for heading in ("family", "tasks", *columns):
        made.add_column(heading)
    families: dict[str, list[Mapping[str, Any]]] = {}
    for task in row["tasks"]:
        families.setdefault(task["family"], []).append(task)
    for family, tasks in {**families, "all": row["tasks"]}.items():
        found = estimates(tasks, shown)
        made.add_row(family, str(len(tasks)), *(_interval(found[column]) for column in columns))
    return made


def notes(config: Config) -> list[str]:
    """What a reader of the table has to know."""
    same = config.evaluation.temperature == 0 and config.evaluation.samples > 1
    if not same or isinstance(config.policy, RemotePolicySettings):
        return []
    return [
        "eval.temperature=0: the samples of a task are one and the same unless the environment draws at random; "
        "pass@k and pass^k then say no more than pass@1"
    ]


def _interval(found: Mapping[str, float | int | None]) -> str:
    if found["value"] is None:
        return "-"
    return f"{found['value']:.3f} [{found['low']:.3f},{found['high']:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
