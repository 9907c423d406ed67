from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from rti_exp.config.defaults import default_settings
from rti_exp.config.job_settings import ProbeSettings
from rti_exp.config.settings import AlgorithmSettings, EvaluationSettings, RunSettings, SettingsError
from rti_exp.experiment.parts import default_environment
from rti_exp.pretraining.probe_cases import TownProbe
from rti_exp.runs import Run
from rti_exp.training.callbacks import training_callbacks
from rti_exp.training.checkpoint_callback import IterationCheckpoint
from rti_exp.training.probe import ProbeCallback, ProbeCase, probe_row
from tests.support.fakes import GuessWorld
from tests.support.training_fakes import RENDERER, equal_weights, fit, sampled, weights

TOWN = default_environment("town", heldout_tasks=2, families=["nav_hard", "ret_easy"])


def test_row_holds_geometric_means_over_all_cases_and_by_family() -> None:
    cases = [ProbeCase(family=family, prompt_ids=(1,), action_ids=(2, 3)) for family in ("a", "a", "b")]
    # Perplexities 2, 8 and 2: over all (2 * 8 * 2)^(1/3).
    scores = [(-math.log(2),) * 2, (-math.log(4), -math.log(16)), (-math.log(2),) * 2]
    assert probe_row(7, cases, scores) == {
        "kind": "probe",
        "iteration": 7,
        "perplexity": pytest.approx(32 ** (1 / 3)),
        "perplexity/a": pytest.approx(4.0),
        "perplexity/b": pytest.approx(2.0),
    }


def test_an_impossible_token_makes_an_infinite_perplexity() -> None:
    case = ProbeCase(family="a", prompt_ids=(1,), action_ids=(2,))
    assert probe_row(0, [case], [(-math.inf,)])["perplexity"] == math.inf
    assert probe_row(0, [case], [(-1e6,)])["perplexity"] == math.inf


def test_the_towns_cases_are_right_actions_where_the_agent_went_wrong() -> None:
    cases = TownProbe(default_settings(ProbeSettings, cases=3)).cases(TOWN, RENDERER)
    assert [case.family for case in cases] == ["nav_hard"] * 3 + ["ret_easy"] * 3
    assert len({case.prompt_ids for case in cases}) == 6
    for case in cases:
        prompt = RENDERER.text(case.prompt_ids)
        assert prompt.startswith("<|bos|><|user|>")
        assert prompt.endswith("<|assistant|>")
        assert "<|system|>" not in prompt  # no role's request, no evidence
        assert RENDERER.text(case.action_ids).endswith("<|end|>")
    searches = [RENDERER.text(case.action_ids) for case in cases[:3]]
    assert all(json.loads(text.removesuffix("<|end|>"))["name"] for text in searches)


def test_the_towns_cases_depend_on_the_probes_seed_alone() -> None:
    first = TownProbe(default_settings(ProbeSettings, cases=2)).cases(TOWN, RENDERER)
    assert (
        TownProbe(default_settings(ProbeSettings, cases=2)).cases(
            default_environment("town", seed=5, families=["nav_hard", "ret_easy"]), RENDERER
        )
        == first
    )
    assert TownProbe(default_settings(ProbeSettings, cases=2, seed=1)).cases(TOWN, RENDERER) != first


def test_another_world_has_no_such_cases() -> None:
    with pytest.raises(SettingsError, match="belong to the town, not to GuessWorld; must be none"):
        TownProbe(default_settings(ProbeSettings)).cases(GuessWorld(), RENDERER)


def test_probing_writes_rows_and_changes_nothing_else(tmp_path: Path) -> None:
    run_settings = default_settings(RunSettings, seed=3, max_iterations=3, tasks_per_iteration=2, group_size=4)
    settings = default_settings(AlgorithmSettings, learning_rate=1e-3)
    prompt, action = RENDERER.opening((), ()), RENDERER.action_ids("17")
    case = ProbeCase(family="boxes", prompt_ids=prompt, action_ids=action)
    module = sampled(run=run_settings, settings=settings)
    ids_BT = torch.tensor([prompt + action])
    log_probs_TV = module.model(input_ids=ids_BT).logits[0].log_softmax(dim=-1)
    places = range(len(prompt), len(prompt) + len(action))
    expected = math.exp(-sum(log_probs_TV[place - 1, ids_BT[0, place]].item() for place in places) / len(action))
    run = Run(tmp_path, key="0123456789ab", study="study")
    callbacks = training_callbacks(
        run=run,
        heldout=[],
        evaluation=default_settings(EvaluationSettings, tasks=0),
        decode=RENDERER.text,
        recorder_every=0,
        checkpoint=IterationCheckpoint(run=run, run_key=run.key, checkpoints=run.checkpoints),
        probe=ProbeCallback(run=run, cases=[case], every=2),
    )
    fit(module, callbacks)
    compute = run.compute
    run.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["iteration"]) for row in rows] == [
        ("probe", 0),
        ("train", 1),
        ("train", 2),
        ("probe", 2),
        ("train", 3),
        ("probe", 3),
    ]
    assert rows[0]["perplexity"] == rows[0]["perplexity/boxes"] == pytest.approx(expected, rel=1e-4)
    assert rows[-1]["perplexity"] != rows[0]["perplexity"]
    assert compute["scored_tokens"] == 0
    assert equal_weights(weights(module), weights(fit(sampled(run=run_settings, settings=settings))))


def test_it_is_scored_in_the_precision_of_training() -> None:
    autocast: list[bool] = []

    class Rows:
        def append_metrics(self, row: dict) -> None:
            autocast.append(row["kind"] == "probe")

    module = sampled(run=default_settings(RunSettings, max_iterations=1, tasks_per_iteration=2, group_size=2))
    module.model.register_forward_pre_hook(lambda *_: autocast.append(torch.is_autocast_enabled("cpu")))
    callback = ProbeCallback(
        run=Rows(),  # pyright: ignore[reportArgumentType]
        cases=[ProbeCase(family="a", prompt_ids=(1, 3), action_ids=(7, 2))],
        every=1,
    )
    fit(module, [callback], precision="bf16-mixed")
    assert len(autocast) > 2
    assert all(autocast)
