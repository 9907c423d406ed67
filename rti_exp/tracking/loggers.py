"""Experiment loggers: W&B, CSV; `logger=none` needs no object.

A logger receives each metrics row after it is on disk. When the run ends, `finish` gets its state. Only `WandbLogger`
imports wandb.
"""

from __future__ import annotations

import csv
import html
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.runs import REPORT_FILES, Run
from rti_exp.runs.json_lines import plain, read_lines
from rti_exp.tracking.wandb_login import NO_LOGIN, has_login

TABLE_ROWS = 60
TABLE_COLUMNS = (
    *("iteration", "task_id", "family", "step", "outcome", "perplexity", "before", "after"),
    *("reason", "history", "child_reward"),
)
TAG_LENGTH = 64


def unfailing(log: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
    """`log`, but its first exception becomes a warning and later ones are dropped. metrics.jsonl has the rows."""
    warned = False

    def safe_log(row: Mapping[str, Any]) -> None:
        nonlocal warned
        try:
            log(row)
        except Exception as error:  # raised by third-party code, such as W&B's
            if not warned:
                print(
                    f"warning: the logger failed ({type(error).__name__}: {error}); the run continues", file=sys.stderr
                )
            warned = True

    return safe_log


class RunLogger(Protocol):
    """The methods that a job calls."""

    def log(self, row: Mapping[str, Any]) -> None: ...
    def finish(self, state: str, run: Run) -> None: ...


class WandbLogger:
    """One W&B run, with the run key as id, its files in the run directory, and RL iterations as x-axis.

    Args:
        mode: offline, online or disabled; online needs WANDB_API_KEY or an earlier `wandb login`.
        files: upload the files that reports read, for `python -m rti_exp.wandb_fetch`.

    Raises:
        SettingsError: another mode, or online without a login (the user is never prompted).
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        *,
        project: str,
        entity: str | None,
        mode: str,
        files: bool,
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
        run.update(wandb_id=self._wandb.id)  # the run key, except under a W&B sweep agent, which sets the id

    def log(self, row: Mapping[str, Any]) -> None:
        prefix = "" if row["kind"] == "train" else f"{row['kind']}/"
        self._wandb.log(
            {**{prefix + name: value for name, value in finite(row).items()}, "iteration": row["iteration"]}
        )

    def finish(self, state: str, run: Run) -> None:
        """Logs a sample of the interventions, uploads the run's files, and ends the W&B run.

        Its exit code is 1 unless the state is "done".
        """
        import wandb

        rows: list[Any] = intervention_table(run.interventions.path)
        if rows:
            table = wandb.Table(columns=list(TABLE_COLUMNS), data=rows)
            self._wandb.log({"interventions": table, "iteration": run.iterations_done})
        for path in (run.directory / name for name in REPORT_FILES if self._files):
            if path.exists():  # named <run key>/<file>, since W&B has its own config.yaml
                self._wandb.save(path, base_path=run.directory.parent, policy="now", glob=False)
        self._wandb.finish(exit_code=0 if state == "done" else 1)


def check_logger(config: Config) -> None:
    """Checks the logger's mode before the run has a directory.

    Raises:
        SettingsError: `WandbLogger` would refuse it.
    """
    if config.logger.target == "rti_exp.tracking.loggers.WandbLogger":
        check_mode(config.logger.options.mode)


def check_mode(mode: str) -> None:
    """
    Raises:
        SettingsError: the mode does not exist, or is online without a login.
    """
    if mode not in ("offline", "online", "disabled"):
        raise SettingsError(f"logger.mode={mode!r}: must be offline, online or disabled")
    if mode == "online" and not has_login():
        raise SettingsError(f"logger.mode='online': {NO_LOGIN}, or use logger.mode=offline")


def tags(study: str, config: Config) -> list[str]:
    """Tags of at most 64 characters, W&B's limit."""
    target = config.corrector.target
    corrector = target.rpartition(".")[2] if target else "no corrector"
    return [tag[:TAG_LENGTH] for tag in dict.fromkeys((study, corrector, config.top.size)) if tag]


def finite(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a metrics row. W&B would write the others as invalid JSON."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name != "iteration"
    }


def intervention_table(path: Path) -> list[list[Any]]:
    """Up to `TABLE_ROWS` attempts with a correction, spread evenly over the run, with the step before and after.

    Text of models is escaped, so that markup in it is shown, not interpreted.
    """
    records = [record for record in read_lines(path) if record.get("correction") is not None]
    stride = max(1, math.ceil(len(records) / TABLE_ROWS))
    return [_table_row(record) for record in records[::stride]]


def _table_row(record: Mapping[str, Any]) -> list[Any]:
    values = {**record, "before": record.get("original"), "after": record.get("correction")}
    return [
        html.escape(value, quote=False) if isinstance(value, str) else value
        for value in (values.get(name) for name in TABLE_COLUMNS)
    ]


class CsvLogger:
    """Writes the rows of metrics.jsonl to metrics.csv in the run directory when the run ends."""

    def __init__(self, config: Config, run: Run) -> None:
        self._path = run.directory / "metrics.csv"

    def log(self, row: Mapping[str, Any]) -> None:
        """Does nothing: metrics.jsonl already has the row."""

    def finish(self, state: str, run: Run) -> None:
        rows = [{name: value for name, value in row.items() if name != "tasks"} for row in read_lines(run.metrics.path)]
        columns: Sequence[str] = list(dict.fromkeys(name for row in rows for name in row))
        with open(self._path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
