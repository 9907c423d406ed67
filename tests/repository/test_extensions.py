"""The example algorithm, validator, corrector, verifier and gate train on the embedded world, each from its YAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings
from tests.support.jobs import rows
from tests.support.losses import INPUTS

ROOT = Path(__file__).parents[2]
if not ROOT.joinpath("examples").is_dir():
    pytest.skip("the examples are part of the checkout", allow_module_level=True)


def interventions(tmp_path: Path, *overrides: str) -> list[dict]:
    command = [sys.executable, "-m", "rti_exp.train", "--config-dir", "examples/conf", "debug=one_iteration"]
    command += ["probe=none", "logger=none", f"runs_root={tmp_path}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    [run] = tmp_path.glob("debug/*")
    records = rows(run, "interventions.jsonl")
    assert records
    return records


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["0.0", "inf"])
def test_own_roles_and_gate(tmp_path: Path, limit: str) -> None:
    options = ("corrector.text=xyz", "verifier.pattern=x.*", f"gate.max_surprisal={limit}")
    roles = ("validator=first_error", "corrector=template", "verifier=regex", "gate=surprisal")
    records = interventions(tmp_path, *roles, *options)
    assert {record["reason"] for record in records} == {"the call failed"}
    assert {record["correction"] for record in records} == {"xyz"}
    checks = [check for record in records for check in record["checks"]]
    assert {(check["judge"], check["passed"]) for check in checks} == {("regex", True)}
    # No text is certain, so a limit of 0 drops every correction, and inf none.
    dropped = [record["outcome"] == "too_perplexing" for record in records]
    assert all(dropped) if limit == "0.0" else not any(dropped)


@pytest.mark.slow
def test_an_algorithm_of_another_package(tmp_path: Path) -> None:
    interventions(tmp_path, "algorithm=cispo")
    [run] = tmp_path.glob("debug/*")
    row = next(row for row in rows(run) if row["kind"] == "train")
    assert row["updates/steps"] > 0
    assert row["loss/policy"] is not None


def test_the_loss_of_the_example_algorithm_by_hand() -> None:
    """The ratio e^0.5 is clipped to 1.28: loss -(1.5 * 1.28 * 2 * -0.5 - 2) / 4, gradient -1.28 * 1.5 * 2 / 4."""
    from examples.extensions.algorithm import CISPO

    log_probs = torch.tensor([[0.0, -0.5, -1.0]], requires_grad=True)
    loss, stats = CISPO(default_settings(AlgorithmSettings, clip_high=0.28)).loss(log_probs, INPUTS)
    loss.backward()
    assert loss.item() == pytest.approx((1.92 + 2) / 4)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [pytest.approx([0.0, -0.96, -0.5])]
    assert stats.clip_share.item() == 0.25
