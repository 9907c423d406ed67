from __future__ import annotations

from pathlib import Path

import pytest

from rti_exp.analysis.compute_matching import ArmCompute, arm_compute, matched_budget, matched_group_size
from rti_exp.analysis.study import load_study
from rti_exp.compute import main
from rti_exp.runs import Run, run_key
from tests.support.studies import train


def arm(tokens: float, group_size: int = 8) -> ArmCompute:
    return ArmCompute(
        arm="arm",
        runs=1,
        generated=tokens,
        scored=0.0,
        plain_grpo=False,
        group_size=group_size,
        max_iterations=60,
        tasks_per_iteration=12,
    )


@pytest.mark.parametrize(("spent", "size"), [(100.0, 8), (150.0, 12), (231.0, 18), (10.0, 2)])
def test_the_group_size_grows_with_the_tokens(spent: float, size: int) -> None:
    assert matched_group_size(arm(spent), arm(100.0)) == size


def test_a_budget_is_rounded_up() -> None:
    assert matched_budget(arm(1234.5)) == 1235


def write_run(study: Path, name: str, seed: int, iterations: int, *typed: str, **settings: int) -> None:
    corrector = {"_target_": None if name == "grpo" else "rti_exp.intervention.corrector.SelfCorrector"}
    config = {"seed": seed, "group_size": 8, "gate": {"delta": 5.0}, "corrector": corrector, **settings}
    key = run_key(config)
    overrides = [f"experiment={name}", f"seed={seed}", *typed]
    run = Run.open(study / key, key=key, study=study.name, config=config, overrides=overrides, seed=seed, fresh=False)
    for iteration in range(1, iterations + 1):
        row = train(iteration)
        if name == "grpo":
            row |= {"tokens/role_generated": 0, "tokens/scored": 0}
        run.append_metrics(row)
    run.finish("done")
    run.close()


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed, iterations in ((0, 2), (1, 4)):
        write_run(tmp_path / "study", "grpo", seed, iterations)
        write_run(tmp_path / "study", "rti", seed, iterations)
    return tmp_path / "study"


def test_means_over_the_runs_of_each_arm(study: Path) -> None:
    grpo, rti = arm_compute(load_study(study, interventions=False))
    assert (grpo.arm, grpo.runs, grpo.generated, grpo.scored, grpo.group_size) == ("experiment=grpo", 2, 3000, 0, 8)
    assert (rti.arm, rti.generated, rti.scored, rti.tokens) == ("experiment=rti", 3300, 60, 3360)
    assert (grpo.plain_grpo, rti.plain_grpo) == (True, False)


def test_matching_keys_are_printed(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-3:] == [
        "GRPO with the tokens of experiment=rti:",
        "  more iterations  experiment=compute_matched budget.tokens=3360",
        "  more samples     experiment=grpo group_size=9",
    ]
    assert main([str(study), "--arm", "experiment=grpo"]) == 0
    assert capsys.readouterr().out.endswith("\nexperiment=grpo is plain GRPO itself.\n")


def test_grpo_of_the_same_length_is_matched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study"
    for iterations in (2, 4):
        settings = {"max_iterations": iterations, "tasks_per_iteration": 12}
        write_run(study, "grpo", 0, iterations, f"max_iterations={iterations}", **settings)
    write_run(study, "rti", 0, 4, "max_iterations=4", max_iterations=4, tasks_per_iteration=12)
    write_run(study, "rti", 0, 4, "max_iterations=5", max_iterations=5, tasks_per_iteration=12)
    assert main([str(study)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("GRPO with the tokens of") == 2
    assert "budget.tokens=4480\n  more samples     experiment=grpo group_size=9\n" in printed
    assert printed.endswith("unknown: the study has no plain GRPO of 5 iterations of 12 tasks\n")


def test_a_missing_arm_or_study_is_an_error(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(study), "--arm", "experiment=other"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "arms with finished runs: experiment=grpo; experiment=rti" in error
    write_run(study.parent / "another", "rti", 0, 1)
    assert main(["nothing", "--runs-root", str(study.parent)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.endswith("Studies: another, study\n")
