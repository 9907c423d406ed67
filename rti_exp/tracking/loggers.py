"""Who is told of a run besides its own directory: W&B, a CSV file, nobody (`logger=none`, no object).

A logger gets each metrics row after it is on disk, and is finished with the state the run ended in.
wandb is imported by `WandbLogger` only.
"""

from __future__ import annotations

import csv
import html
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rti_exp.config.check import Config
from rti_exp.config.settings import SettingsError
from rti_exp.runs import TOLD_FILES, Run
from rti_exp.runs.json_lines import plain, read_lines

TABLE_ROWS = 60
TABLE_COLUMNS = (
    "iteration",
    "task_id",
    "family",
    "step",
    "outcome",
    "perplexity",
    "before",
    "after",
    "reason",
    "history",
    "child_reward",
)
TAG_LENGTH = 64


def unfailing(log: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """`log`, but what it raises is told once, as a warning, and goes no further: metrics.jsonl has the rows."""
    told = False

    def careful(row: Mapping[str, Any]) -> None:
        nonlocal told
        try:
            log(row)
        except Exception as error:  # code of others: W&B's, for one
            if not told:
                print(f"warning: the logger failed ({type(error).__name__}: {error}); the run goes on", file=sys.stderr)
            told = True

    return careful


class RunLogger(Protocol):
    """What a job needs of a logger."""

    def log(self, row: Mapping[str, Any]) -> None: ...
    def finish(self, state: str, run: Run) -> None: ...


class WandbLogger:
    """One W&B run, with the run key as id, its files in the run directory, and RL iterations as x-axis.

    Args:
        mode: offline, online or disabled; online needs WANDB_API_KEY or an earlier `wandb login`.
        files: whether W&B keeps the files that reports read, for `python -m rti_exp.wandb_fetch`.

    Raises:
        SettingsError: another mode, or online without a login (nobody is asked for one).
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        *,
        project: str = "rti_exp",
        entity: str | None = None,
        mode: str = "offline",
        files: bool = True,
    ) -> None:
        check_mode(mode)
        import wandb

        overrides = [
            text for text in run.status["overrides"] if not text.startswith(("study=", "runs_root=", "fresh="))
        ]
        seeded = any(text.startswith("seed=") for text in overrides)
        self._files = files and mode != "disabled"
        self._wandb = wandb.init(
            project=project,
            entity=entity,
            mode=mode,  # pyright: ignore[reportArgumentType]
            id=run.key,
            resume="allow",
            reinit="finish_previous",
            group=run.study,
            name=" ".join(overrides if seeded else [*overrides, f"seed={config.run.seed}"])[:128],
            tags=tags(run.study, config),
            config=plain(config.plain),
            dir=run.directory,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._wandb.define_metric("iteration")
        self._wandb.define_metric("*", step_metric="iteration")
        run.update(wandb_id=self._wandb.id)  # the key, but for an agent of a W&B sweep, which gives its own

    def log(self, row: Mapping[str, Any]) -> None:
        prefix = "" if row["kind"] == "train" else f"{row['kind']}/"
        self._wandb.log(
            {**{prefix + name: value for name, value in finite(row).items()}, "iteration": row["iteration"]}
        )

    def finish(self, state: str, run: Run) -> None:
        """Log a sample of the interventions, hand the run's files over, and end the W&B run.

        Its exit code is 1 unless the state is done.
        """
        import wandb

        rows: list[Any] = intervention_table(run.interventions.path)
        if rows:
            table = wandb.Table(columns=list(TABLE_COLUMNS), data=rows)
            self._wandb.log({"interventions": table, "iteration": run.iterations_done})
        for path in (run.directory / name for name in TOLD_FILES if self._files):
            if path.exists():  # named <run key>/<file>: W&B has a config.yaml of its own
                self._wandb.save(path, base_path=run.directory.parent, policy="now", glob=False)
        self._wandb.finish(exit_code=0 if state == "done" else 1)


def has_login() -> bool:
    """Whether W&B would take its key from the environment or from an earlier login; nobody is asked."""
    import wandb

    if os.environ.get("WANDB_API_KEY"):
        return True
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False))  # pyright: ignore[reportCallIssue]
    return bool(wandb.api.api_key)  # versions before prompt=


def check_logger(config: Config) -> None:
    """What a job's logger would refuse, before the run has a directory.

    Raises:
        SettingsError: as `WandbLogger` does.
    """
    if config.logger.target == "rti_exp.tracking.loggers.WandbLogger":
        check_mode(config.logger.options.mode)


def check_mode(mode: str) -> None:
    """Online without a key would ask for one at the terminal; wandb is imported for that only."""
    if mode not in ("offline", "online", "disabled"):
        raise SettingsError(f"logger.mode={mode!r}: must be offline, online or disabled")
    if mode == "online" and not has_login():
        raise SettingsError(
            "logger.mode='online': there is no W&B login; set the environment variable WANDB_API_KEY or run "
            "`wandb login`, or take logger.mode=offline"
        )


def tags(study: str, config: Config) -> list[str]:
    """Short tags; W&B refuses longer than 64 characters."""
    target = config.corrector.target
    corrector = target.rpartition(".")[2] if target else "no corrector"
    return [tag[:TAG_LENGTH] for tag in dict.fromkeys((study, corrector, config.top.size)) if tag]


def finite(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a metrics row; W&B would write others as invalid JSON."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name != "iteration"
    }


def intervention_table(path: Path) -> list[list[Any]]:
    """Up to `TABLE_ROWS` attempts with a correction, evenly over the run, before and after side by side.

    Model text is escaped: what looks like markup is shown, not obeyed.
    """
    records = [record for record in read_lines(path) if record.get("correction") is not None]
    stride = max(1, math.ceil(len(records) / TABLE_ROWS))
    return [_table_row(record) for record in records[::stride]]


def _table_row(record: Mapping[str, Any]) -> list[Any]:
    texts = {"before": record.get("original"), "after": record.get("correction")}
    values = {**record, **texts}
    return [
        html.escape(value, quote=False) if isinstance(value, str) else value
        for value in (values.get(name) for name in TABLE_COLUMNS)
    ]


class CsvLogger:
    """metrics.csv in the run directory, written when the run ends: the rows of metrics.jsonl, flat."""

    def __init__(self, config: Config, run: Run) -> None:
        self._path = run.directory / "metrics.csv"

    def log(self, row: Mapping[str, Any]) -> None:
        """Nothing: metrics.jsonl has it already."""

    def finish(self, state: str, run: Run) -> None:
        rows = [{name: value for name, value in row.items() if name != "tasks"} for row in read_lines(run.metrics.path)]
        columns: Sequence[str] = list(dict.fromkeys(name for row in rows for name in row))
        with open(self._path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
