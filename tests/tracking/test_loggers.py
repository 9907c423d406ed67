from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.config.typed_config import Config
from rti_exp.runs import Run
from rti_exp.tracking.loggers import TABLE_COLUMNS, CsvLogger, WandbLogger, finite, intervention_table, tags, unfailing
from tests.support.wandb_environment import without_login

Composed = Callable[..., DictConfig]


@pytest.fixture
def config(composed: Composed) -> Config:
    return check(composed())


@pytest.fixture
def run(config: Config, tmp_path: Path) -> Run:
    return Run.open(tmp_path, key=config.key, study="single", config=config.plain)


def test_only_finite_numbers_are_sent() -> None:
    row = {"kind": "train", "iteration": 3, "a": 1.5, "b": math.nan, "c": math.inf, "d": None, "e": 2, "f": [1]}
    assert finite(row) == {"a": 1.5, "e": 2}


def test_tags_are_short(config: Config) -> None:
    assert tags("s" * 100, config) == ["s" * 64, "SelfCorrector", "full"]


def test_the_table_shows_before_and_after_escaped(run: Run) -> None:
    record = {"iteration": 1, "original": "<think>a</think>", "correction": "<script>b</script>", "perplexity": 2.0}
    run.append_interventions([{**record, "iteration": number} for number in range(1, 122)])
    run.append_interventions([{"iteration": 122, "original": "no fault", "correction": None}])
    table = intervention_table(run.interventions.path)
    assert [row[0] for row in table] == list(range(1, 122, 3))
    first = dict(zip(TABLE_COLUMNS, table[0], strict=True))
    assert first["before"] == "&lt;think&gt;a&lt;/think&gt;"
    assert first["after"] == "&lt;script&gt;b&lt;/script&gt;"
    assert first["perplexity"] == 2.0


def test_csv_has_a_row_for_each_row(config: Config, run: Run) -> None:
    run.append_metrics({"kind": "eval", "iteration": 0, "pass@1": 0.5, "tasks": [{"task_id": "a"}]})
    run.append_metrics({"kind": "train", "iteration": 1, "reward/mean": math.nan})
    CsvLogger(config, run).finish("done", run)
    with open(run.directory / "metrics.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"kind": "eval", "iteration": "0", "pass@1": "0.5", "reward/mean": ""},
            {"kind": "train", "iteration": "1", "pass@1": "", "reward/mean": ""},
        ]


NO_LOGIN = """
import sys
from types import SimpleNamespace
import wandb
from rti_exp.tracking.loggers import WandbLogger
from rti_exp.config.settings import SettingsError

def never(**arguments):
    raise AssertionError("W&B was started")

wandb.init = never
try:
    WandbLogger(SimpleNamespace(), SimpleNamespace(), project="p", entity=None, mode="online", files=True)
except SettingsError as error:
    print(error)
"""


def test_online_without_a_login_does_not_prompt(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_LOGIN],
        env=without_login(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "logger.mode='online': there is no W&B login" in done.stdout


def test_an_unknown_mode_is_refused(config: Config, run: Run) -> None:
    with pytest.raises(SettingsError, match=r"logger\.mode='shout': must be offline, online or disabled"):
        WandbLogger(config, run, project="p", entity=None, mode="shout", files=True)


def test_a_logger_that_fails_during_a_run_warns_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    logged: list[int] = []

    def log(row: Mapping[str, Any]) -> None:
        logged.append(row["iteration"])
        raise ConnectionError("no space left")

    run.listeners.append(unfailing(log))
    for iteration in (1, 2, 3):
        run.append_metrics({"kind": "train", "iteration": iteration})
    assert logged == [1, 2, 3]
    assert run.iterations_done == 3
    assert capsys.readouterr().err == "warning: the logger failed (ConnectionError: no space left); the run continues\n"
