"""Environments that are refused before a model is loaded, and before a run has a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rti_exp.config.check import check
from rti_exp.config.settings import SettingsError
from rti_exp.experiment.checks import check_parts
from rti_exp.types import Task
from tests.support.fakes import GuessWorld

LEAVING = """
import sys
from rti_exp.envs.town import Town

class Leaving(Town):
    def __init__(self, *, code: int = 0) -> None:
        sys.exit(code)
"""


class OddWorld(GuessWorld):
    """Breaks one promise."""

    def __init__(self, *, promise: str = "", turns: int = 3) -> None:
        super().__init__()
        self.promise, self.max_turns = promise, turns

    def tasks(self, split: str) -> Sequence[Task]:
        tasks = super().tasks(split)
        if self.promise == f"unique ids in {split}":
            return [*tasks, tasks[0]]
        if self.promise == "listing ends" and split == "train":
            sys.exit(0)
        return () if self.promise == f"tasks in {split}" else tasks


class NoStart:
    max_turns = 3

    def __init__(self) -> None:
        self.world = GuessWorld()

    def tasks(self, split: str) -> Sequence[Task]:
        return self.world.tasks(split)


def environment(name: str, *options: str) -> tuple[str, ...]:
    return ("tasks_per_iteration=1", "probe=none", "~env", f"+env._target_={__name__}.{name}", *options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            environment("OddWorld", "+env.promise=unique ids in train"),
            r"env\._target_='.*OddWorld': .* tasks\(\"train\"\) must give each id once; '.*' comes 2 times",
        ),
        (
            environment("OddWorld", "+env.promise=unique ids in heldout"),
            r"env\._target_='.*OddWorld': .* tasks\(\"heldout\"\) must give each id once; '.*' comes 2 times",
        ),
        (
            environment("OddWorld", "+env.promise=tasks in heldout", "eval.tasks=4"),
            r"eval\.tasks=4: must be 0 \(no evaluation\), or env an environment with held-out tasks; .*OddWorld has no",
        ),
        (environment("OddWorld", "+env.promise=listing ends"), r"env\._target_='.*OddWorld': .* SystemExit: 0"),
        (environment("OddWorld", "+env.turns=0"), r"its max_turns is 0; it must be an integer >= 1"),
        (environment("NoStart"), r"NoStart': must have max_turns, tasks\(split\) and start\(task\)"),
    ],
)
def test_a_broken_promise_is_refused(
    composed: Callable[..., DictConfig], policy_folder: Path, overrides: Sequence[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_parts(check(composed(f"policy.path={policy_folder}", *overrides)))


def test_without_an_evaluation_no_task_need_be_held_out(
    composed: Callable[..., DictConfig], policy_folder: Path
) -> None:
    overrides = environment("OddWorld", "+env.promise=tasks in heldout", "eval.tasks=0")
    check_parts(check(composed(f"policy.path={policy_folder}", *overrides)))


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("options", [("+env.code=CODE",), ("+env.code=CODE", "+env.timeout=60")])
def test_an_environment_that_ends_the_process_is_a_bad_config(
    composed: Callable[..., DictConfig],
    policy_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    options: Sequence[str],
) -> None:
    (tmp_path / "leaving_world.py").write_text(LEAVING)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = ["~env", "+env._target_=leaving_world.Leaving", *(text.replace("CODE", str(code)) for text in options)]
    with pytest.raises(SettingsError, match=rf"leaving_world\.Leaving.*(sys\.exit\({code}\)|SystemExit: {code})"):
        check_parts(check(composed(f"policy.path={policy_folder}", *overrides)))


@pytest.mark.parametrize("place", ["constructor", "import"])
def test_the_command_ends_with_the_code_of_a_bad_config(tmp_path: Path, policy_folder: Path, place: str) -> None:
    """`sys.exit(0)` in code of others must not pass for a success."""
    text = LEAVING if place == "constructor" else "import sys\nsys.exit(0)\n"
    (tmp_path / "leaving_world.py").write_text(text)
    overrides = ["~env", "+env._target_=leaving_world.Leaving", "probe=none", "seed=0,1"]
    overrides += [f"policy.path={policy_folder}", f"runs_root={tmp_path / 'runs'}"]
    done = subprocess.run(
        [sys.executable, "-m", "rti_exp.train", "-m", *overrides],
        env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "leaving_world.Leaving" in done.stderr
    assert "sys.exit(0)" in done.stderr or "SystemExit: 0" in done.stderr
    assert not list(tmp_path.rglob("status.json"))
