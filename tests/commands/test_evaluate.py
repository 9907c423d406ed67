"""`python -m rti_exp.evaluate`: runs by name, and arguments that are refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.evaluate import main
from rti_exp.evaluation.request import run_directory
from rti_exp.runs import Run
from rti_exp.training.checkpoints import save_checkpoint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval.tasks=0"], "bad config: eval.tasks=0: must be an integer >= 1"),
        (["eval.smaples=2"], "bad config: eval.smaples: unknown key; did you mean eval.samples?"),
        (["-m", "seed=1"], "bad config: -m: no such option; only key=value and --help are taken here"),
        (["run=nowhere", "corrector=none"], "bad config: corrector=none: with run= the run's corrector is fixed"),
        (["run=nowhere"], "bad config: run='nowhere': must be a run directory"),
        (["run=nowhere", "+benchmark=tau2_mock"], "+benchmark=tau2_mock: with run= the run's benchmark is fixed"),
    ],
)
def test_bad_config_is_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def evaluated_run(composed: Callable[..., DictConfig], policy_folder: Path, tmp_path: Path) -> Run:
    """A closed run with a checkpoint, in a directory that is not named after its key."""
    config = check(composed(f"policy.path={policy_folder}", "eval.tasks=1", "eval.samples=1", "logger=none"))
    run = Run.open(tmp_path / "renamed", key=config.key, study="single", config=config.plain)
    state = {"iteration": 1, "model": AutoModelForCausalLM.from_pretrained(policy_folder).state_dict()}
    save_checkpoint(run.checkpoints, config.key, state, previous=0)
    run.close()
    return run


def test_a_renamed_run_is_evaluated_and_another_runs_checkpoint_is_refused(
    evaluated_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"run={evaluated_run.directory}"]) == 0
    assert "after iteration 1" in capsys.readouterr().out
    save_checkpoint(evaluated_run.checkpoints, "another", {"iteration": 2, "model": {}}, previous=1)
    assert main([f"run={evaluated_run.directory}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bad config: run='{evaluated_run.directory}': ")
    assert "another" in error


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gate.delta=,", "gate.delta=,: cannot be read; must be key=value"),
        ("eval.tasks=[", "eval.tasks=[: cannot be read; must be key=value"),
        ("+env.timeout=0", "env.timeout=0: must be a number of seconds > 0"),
        ("out={run}/config.yaml", "config.yaml': cannot be created (File exists)"),
    ],
)
def test_a_bad_key_with_a_run_is_exit_code_2(
    argument: str, message: str, evaluated_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = evaluated_run.directory
    assert main([f"run={directory}", argument.format(run=directory)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bad config: ")
    assert message in error


def test_a_run_is_found_by_its_study_and_the_start_of_its_key(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "mine" / "0123456789ab", key="0123456789ab", study="mine", config={"seed": 0})
    run.close()
    for name in ("0123456789ab", "0123", "mine/0123", str(run.directory)):
        assert run_directory(name, tmp_path) == run.directory
    with pytest.raises(SettingsError, match=r"^run='9': must be a run directory, STUDY/KEY .*there are: mine/0123"):
        run_directory("9", tmp_path)
