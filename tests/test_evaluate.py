"""`python -m rti_exp.evaluate`: what is refused, before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rti_exp.evaluate import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval.tasks=0"], "bad config: eval.tasks=0: must be an integer >= 1"),
        (["eval.smaples=2"], "bad config: eval.smaples: unknown key; did you mean eval.samples?"),
        (["run=nowhere"], "bad config: run='nowhere': must be a run directory"),
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
