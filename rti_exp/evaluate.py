"""`python -m rti_exp.evaluate`: pass@k of a run's newest checkpoint, or of a policy, without intervening.

    python -m rti_exp.evaluate run=runs/single/1ff1e526cb9e      the run's own environment and settings
    python -m rti_exp.evaluate run=single/1ff1e526cb9e           or run=1ff1e5: a key under runs_root, or its beginning
    python -m rti_exp.evaluate policy=tiny eval.tasks=84         a policy; any key of rti_exp.train
    python -m rti_exp.evaluate run=... eval.samples=16 seed=1

Exit code 0, or 2 for a bad config.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from rti_exp import build
from rti_exp.composing import composed
from rti_exp.config import Config, check
from rti_exp.paths import assets_root
from rti_exp.runs import read_config, read_status
from rti_exp.runs.find import NotFound, find_run
from rti_exp.settings import SettingsError
from rti_exp.trainer import quiet, seed_everything
from rti_exp.typed import explain, refuse_options


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    try:
        refuse_options(arguments)
        config, directory = _config(arguments)
        build.check_parts(config)
        row = evaluate(config, directory)
    except SettingsError as error:
        print(f"bad config: {error}", file=sys.stderr)
        return 2
    except (HydraException, OmegaConfBaseException) as error:
        print(f"bad config: {explain(error)}", file=sys.stderr)
        return 2
    Console(soft_wrap=True).print(table(row, config.evaluation.samples))
    return 0


def _config(arguments: Sequence[str]) -> tuple[Config, Path | None]:
    """The config to evaluate with, and the run directory if a run is evaluated."""
    runs = [text.partition("=")[2] for text in arguments if text.startswith("run=")]
    rest = [text for text in arguments if not text.startswith("run=")]
    if not runs:
        return check(composed(rest)), None
    groups = {path.name for path in (assets_root() / "conf").iterdir() if path.is_dir()}
    for text in rest:
        key = text.partition("=")[0]
        if key in groups:
            raise SettingsError(f"{text}: with run= the run's own {key} stands; set single keys of it ({key}.KEY=...)")
    roots = [text.partition("=")[2] for text in rest if text.startswith("runs_root=")]
    directory = _run_directory(runs[-1], Path((roots or ["runs"])[-1]).expanduser())
    stored = read_config(directory)
    if not stored:
        raise SettingsError(f"run={runs[-1]!r}: must be a run directory; there is no {directory / 'config.yaml'}")
    merged = OmegaConf.merge(OmegaConf.create(stored), OmegaConf.from_dotlist(rest))
    assert isinstance(merged, DictConfig)
    return check(merged), directory


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


def evaluate(config: Config, directory: Path | None) -> dict[str, Any]:
    """The eval row (as in metrics.jsonl) of a run's newest valid checkpoint, or of the policy as it is.

    Raises:
        SettingsError: the run has no status or no valid checkpoint of its own, or there is no task.
    """
    if config.evaluation.tasks == 0:
        raise SettingsError("eval.tasks=0: must be an integer >= 1, there is nothing else to do here")
    from rti_exp.callbacks import evaluation_row, interleaved_families
    from rti_exp.checkpoints import CheckpointError, latest_valid_checkpoint
    from rti_exp.models.weights import restore_weights

    quiet()
    seed_everything(config)
    world = build.environment(config)
    policy = build.player(config, config.policy.path)
    iteration = 0
    if directory is not None:
        try:
            state = latest_valid_checkpoint(directory / "checkpoints", _run_key(directory))
        except CheckpointError as error:
            raise SettingsError(f"run={str(directory)!r}: {error}") from error
        if state is None:
            raise SettingsError(f"run={str(directory)!r}: must be a run with a valid checkpoint in checkpoints/")
        restore_weights(policy.model, state["model"])
        iteration = int(state["iteration"])
        policy.engine.sync(iteration)
    tasks = interleaved_families(world.tasks("heldout"))[: config.evaluation.tasks]
    groups = build.collector(config, world, policy).collect(
        tasks, config.evaluation.samples, iteration, purpose="eval", temperature=config.evaluation.temperature
    )
    return evaluation_row(iteration, groups, config.evaluation.samples, config.intervention.success_threshold)


def _run_key(directory: Path) -> str:
    """From its status: the folder may have been renamed or copied."""
    status = read_status(directory)
    if not status or "run_key" not in status:
        raise SettingsError(f"run={str(directory)!r}: must be a run directory; its status.json names no run")
    return str(status["run_key"])


def table(row: Mapping[str, Any], samples: int) -> Table:
    """pass@1 and pass@k by family and over all, with 95% intervals over tasks."""
    shown = sorted({1, samples})
    made = Table(title=f"held-out tasks after iteration {row['iteration']}", title_justify="left")
    for heading in ("family", "tasks", *(f"pass@{k}" for k in shown)):
        made.add_column(heading)
    families: dict[str, list[Mapping[str, Any]]] = {}
    for task in row["tasks"]:
        families.setdefault(task["family"], []).append(task)
    for family, tasks in {**families, "all": row["tasks"]}.items():
        made.add_row(family, str(len(tasks)), *(_interval(tasks, k) for k in shown))
    return made


def _interval(tasks: Sequence[Mapping[str, Any]], k: int) -> str:
    import numpy as np

    from rti_exp.analysis.statistics import Scores, estimate
    from rti_exp.objective.passk import pass_at_k

    scored = {task["task_id"]: task for task in tasks if task["samples"] >= k}
    values = np.array([[pass_at_k(task["samples"], task["successes"], k) for task in scored.values()]], dtype=float)
    found = estimate(Scores(seeds=(0,), tasks=tuple(scored), values_SN=values))
    return f"{found.value:.3f} [{found.low:.3f},{found.high:.3f}]"


if __name__ == "__main__":
    sys.exit(main())
