from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import Callback

from rti_exp.config.defaults import default_settings
from rti_exp.config.settings import AlgorithmSettings, EvaluationSettings, RunSettings
from rti_exp.runs import Run
from rti_exp.training.callbacks import (
    training_callbacks,
)
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.checkpoints import latest_valid_checkpoint, save_checkpoint
from rti_exp.training.learner import RTIModule
from rti_exp.training.metrics import is_timing
from rti_exp.training.samples import iteration_samples
from rti_exp.types import Author
from tests.support.callbacks import StopAfterRows, StopBefore, Stopped, lines
from tests.support.training_fakes import (
    ALGORITHM,
    RENDERER,
    acted,
    equal_weights,
    files,
    fit,
    groups_of,
    sampled,
    weights,
)

SIX = default_settings(RunSettings, seed=3, max_iterations=6, tasks_per_iteration=2, group_size=4)
EVALUATION = default_settings(EvaluationSettings, every=2, tasks=2, samples=2)
KEY = "0123456789ab"


def session(
    directory: Path,
    module: RTIModule,
    *,
    stop: Callback | None = None,
    every: int = 1,
    key: str = KEY,
    evaluation: EvaluationSettings = EVALUATION,
) -> RTIModule:
    """One process's share of a run."""
    run = Run(directory, key=key, study="study")
    callbacks = training_callbacks(
        run=run,
        heldout=module.rollouts.collector.environment.tasks("heldout"),  # pyright: ignore[reportAttributeAccessIssue]
        evaluation=evaluation,
        decode=RENDERER.text,
        recorder_every=2,
        checkpoint=IterationCheckpoint(run=run, run_key=key, checkpoints=run.checkpoints, every=every),
    )
    if stop is not None:
        callbacks.insert(2 if isinstance(stop, StopAfterRows) else 3, stop)
    try:
        return fit(module, callbacks)
    finally:
        run.close()


def rows(directory: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if not is_timing(name)} for row in lines(directory, "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RTIModule]:
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, session(directory, sampled(run=SIX))


@pytest.fixture(scope="module")
def acted_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RTIModule]:
    directory = tmp_path_factory.mktemp("acted")
    run = dataclasses.replace(SIX, max_iterations=2, tasks_per_iteration=4)
    return directory, session(directory, acted(run=run), evaluation=default_settings(EvaluationSettings, tasks=0))


def test_rows_of_a_run(unbroken: tuple[Path, RTIModule]) -> None:
    kinds = [(row["kind"], row["iteration"]) for row in rows(unbroken[0])]
    train = [("train", iteration) for iteration in range(1, 7)]
    evaluations = [("eval", iteration) for iteration in (0, 2, 4, 6)]
    assert sorted(kinds) == sorted(train + evaluations)
    assert kinds[0] == ("eval", 0)
    assert kinds[-1] == ("eval", 6)


@pytest.mark.parametrize(
    ("stop", "every", "left"),
    [
        (StopBefore(4), 1, ["iteration-000002.pt", "iteration-000003.pt"]),
        (StopBefore(4), 2, ["iteration-000002.pt", "iteration-000003.pt"]),
        (StopAfterRows(4), 1, ["iteration-000002.pt", "iteration-000003.pt"]),
        (StopAfterRows(1), 1, []),
        (StopAfterRows(5), 4, ["iteration-000004.pt"]),
    ],
)
def test_a_resumed_run_equals_the_unbroken_one_bit_for_bit(
    tmp_path: Path, unbroken: tuple[Path, RTIModule], stop: Callback, every: int, left: list[str]
) -> None:
    with pytest.raises(Stopped):
        session(tmp_path, sampled(run=SIX), stop=stop, every=every)
    assert files(tmp_path / "checkpoints") == left
    resumed = session(tmp_path, sampled(run=SIX), every=every)
    whole_directory, whole = unbroken
    assert equal_weights(weights(resumed), weights(whole))
    assert groups_of(resumed) == groups_of(whole)
    assert resumed.policy_version == whole.policy_version
    assert sorted(rows(tmp_path), key=str) == sorted(rows(whole_directory), key=str)
    assert lines(tmp_path, "rollouts.jsonl") == lines(whole_directory, "rollouts.jsonl")


def test_a_resumed_run_keeps_the_reference_of_its_start(tmp_path: Path) -> None:
    run = dataclasses.replace(SIX, max_iterations=3)
    settings = default_settings(AlgorithmSettings, learning_rate=1e-3, beta=0.5)
    whole = session(tmp_path / "whole", sampled(run=run, settings=settings))
    with pytest.raises(Stopped):
        session(tmp_path / "broken", sampled(run=run, settings=settings), stop=StopBefore(3))
    resumed = session(tmp_path / "broken", sampled(run=run, settings=settings))
    assert resumed.reference is not None
    assert whole.reference is not None
    assert equal_weights(resumed.reference.state_dict(), whole.reference.state_dict())
    assert equal_weights(weights(resumed), weights(whole))


def test_a_finished_run_that_is_started_again_stays_as_it_is(tmp_path: Path) -> None:
    run = dataclasses.replace(SIX, max_iterations=2)
    done = session(tmp_path, sampled(run=run))
    before = rows(tmp_path)
    again = session(tmp_path, sampled(run=run))
    assert again.iteration == 2
    assert equal_weights(weights(done), weights(again))
    assert rows(tmp_path) == before


def test_truncated_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, unbroken: tuple[Path, RTIModule]
) -> None:
    with pytest.raises(Stopped):
        session(tmp_path, sampled(run=SIX), stop=StopBefore(5))
    newest = tmp_path / "checkpoints" / "iteration-000004.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=r"iteration-000004\.pt cannot be read"):
        state = latest_valid_checkpoint(tmp_path / "checkpoints", KEY)
    assert state is not None
    assert state["iteration"] == 3
    resumed = session(tmp_path, sampled(run=SIX))
    assert equal_weights(weights(resumed), weights(unbroken[1]))
    assert sorted(rows(tmp_path), key=str) == sorted(rows(unbroken[0]), key=str)


def test_checkpoint_holds_tensors_and_plain_types_only(unbroken: tuple[Path, RTIModule]) -> None:
    state = torch.load(unbroken[0] / "checkpoints" / "iteration-000006.pt", weights_only=True)
    assert (state["format"], state["run_key"], state["iteration"]) == (3, KEY, 6)
    assert equal_weights(state["model"], unbroken[1].model.state_dict())
    assert state["optimizer"]["state"][0]["step"].item() == 12


def test_no_checkpoint_is_saved_amid_an_update(tmp_path: Path) -> None:
    module = sampled(run=SIX)
    steps: list[int] = []

    def fail_in_the_second_update_of_iteration_three(gradient: torch.Tensor) -> torch.Tensor:
        if module.updating and module.iteration == 2:
            steps.append(1)
            if len(steps) == 2:
                raise Stopped
        return gradient

    next(module.model.parameters()).register_hook(fail_in_the_second_update_of_iteration_three)
    with pytest.raises(Stopped):
        session(tmp_path, module, every=5)
    assert files(tmp_path / "checkpoints") == []


def test_checkpoint_without_data_module_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, KEY, sampled_state(), previous=0)
    callback = IterationCheckpoint(run=None, run_key=KEY, checkpoints=tmp_path)

    class NoData:
        datamodule = None

    module = sampled()
    module.restore_training_state = lambda state: None
    with pytest.raises(TypeError, match="data module"):
        callback.on_fit_start(NoData(), module)  # pyright: ignore[reportArgumentType]


def sampled_state() -> dict[str, Any]:
    return {"iteration": 1, "policy_version": 1, "model": {}, "optimizer": {}}


def test_interventions_are_recorded(acted_run: tuple[Path, RTIModule]) -> None:
    directory, module = acted_run
    records = [record for record in lines(directory, "interventions.jsonl") if record["iteration"] == 2]
    made = [one for each in groups_of(module) for one in each.interventions]
    assert [record["id"] for record in records] == [one.id for one in made]
    record = next(record for record in records if record["step"] == 1)
    assert record["outcome"] == "accepted"
    assert record["task"] == "<|bos|><|user|>box c<|end|><|assistant|>"
    assert record["history"] == 'assistant: {"name": "open", "arguments": {}}\ntool: stuck'
    assert record["original"] == '{"name": "take", "arguments": {"key": "red"}}'
    assert record["correction"] == '{"name": "take", "arguments": {"key": "green"}}'
    assert record["after"].startswith('assistant: {"name": "open", "arguments": {}}\ntool: code ')
    assert record["child_reward"] == 1.0
    assert record["source"] == "self"
    assert "".join(record["tokens"]) == record["correction"] + "<|end|>"
    assert len(record["tokens"]) == len(record["log_probs"])
    assert [check["name"] for check in record["checks"]] == ["gold", "leak", "plausible"]
    assert len(record["log_probs"]) == len(record["calibration_log_probs"]) == len(record["weights"])


def test_rollouts_are_recorded_every_second_iteration(acted_run: tuple[Path, RTIModule]) -> None:
    directory, module = acted_run
    records = lines(directory, "rollouts.jsonl")
    assert [(record["iteration"], record["task_id"]) for record in records] == [
        (2, each.task.id) for each in groups_of(module)
    ]
    trained_tokens = 0
    for record, each in zip(records, groups_of(module), strict=True):
        merged = [one for one in each.trajectories if one.fork is not None]
        written = (*each.sampled, *merged)
        (samples,) = iteration_samples([each], [module.algorithm.advantages(each)], module.algorithm, ALGORITHM)
        assert [one["reward"] for one in record["trajectories"]] == [one.reward for one in written]
        for one, streams in zip(written, record["trajectories"], strict=True):
            last = one.turns[-1]
            assert tuple(streams["token_ids"]) == one.prompt_ids(len(one.turns) - 1) + last.action_ids
            assert streams["log_probs"][-len(last.action_ids) :] == list(last.action_log_probs)
            trained = next((sample for sample in samples if sample and sample.member == one.member), None)
            kept = trained if one in each.trajectories else None
            expected = kept.loss_mask if kept else (False,) * len(streams["token_ids"])
            assert streams["mask"] == [int(value) for value in expected]
            trained_tokens += sum(streams["mask"])
            assert len({len(streams[name]) for name in ("token_ids", "authors", "mask", "weights", "log_probs")}) == 1
        for one, streams in zip(merged, record["trajectories"][len(each.sampled) :], strict=True):
            written_by_corrector = [
                weight
                for author, weight in zip(streams["authors"], streams["weights"], strict=True)
                if author == Author.CORRECTOR
            ]
            assert written_by_corrector == list(one.correction_weights)
            assert streams["advantage"] > 0
    assert trained_tokens > 0
    assert trained_tokens == module.last_metrics["tokens/trained"]
