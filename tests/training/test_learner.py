from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.loggers.logger import Logger
from transformers import Qwen3ForCausalLM

from rti_exp.config.defaults import default_settings
from rti_exp.config.fields import hints_of
from rti_exp.config.job_settings import TrainerSettings
from rti_exp.config.settings import AlgorithmSettings, RunSettings, Scope
from rti_exp.training.batch import micro_batches
from rti_exp.training.learner import RTIModule
from rti_exp.training.policy_update import DivergedError
from rti_exp.training.samples import to_samples
from rti_exp.training.tasks import IterationTasks
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Group
from tests.support.callbacks import Altered, with_trajectories
from tests.support.fakes import tiny_gpt2, tiny_model
from tests.support.training_fakes import acted, equal_weights, fit, groups_of, sampled, weights
from tests.support.trajectories import group, trajectory, turn

ONE = default_settings(RunSettings, seed=3, max_iterations=1, tasks_per_iteration=4, group_size=4)
TWO = dataclasses.replace(ONE, max_iterations=2)
THREE = dataclasses.replace(ONE, max_iterations=3)


def optimizer_of(module: RTIModule) -> dict[str, Any]:
    return module.training_state()["optimizer"]


def equal_states(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal_states(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal_states, first, second))
    return first == second


def silence(groups: Sequence[Group], iteration: int) -> list[Group]:
    """No signal from the second iteration on."""
    return (
        list(groups) if iteration == 1 else with_trajectories(groups, lambda one: dataclasses.replace(one, reward=0.1))
    )


def test_an_iteration_without_signal_leaves_weights_and_optimizer_bit_identical() -> None:
    settings = default_settings(AlgorithmSettings, learning_rate=1e-2, weight_decay=0.5)
    once = fit(sampled(run=ONE, settings=settings))
    module = sampled(run=THREE, settings=settings)
    module.rollouts.collector = Altered(module.rollouts.collector, silence)
    fit(module)
    assert equal_weights(weights(module), weights(once))
    assert equal_states(optimizer_of(module), optimizer_of(once))
    assert (module.iteration, module.policy_version) == (3, 1)
    assert module.last_metrics["loss/policy"] is None
    assert module.last_metrics["policy/gradient_norm"] is None
    assert module.last_metrics["groups/signal"] == 0.0
    assert module.last_metrics["tokens/trained"] == 0
    assert (module.last_metrics["tokens/generated"] or 0) > 0


def test_training_changes_weights_and_engine_is_told() -> None:
    module = acted(run=TWO)
    before = weights(module)
    fit(module)
    assert not equal_weights(before, weights(module))
    assert module.engine.synced == [1, 2]  # pyright: ignore[reportAttributeAccessIssue]
    assert optimizer_of(module)["state"][0]["step"].item() == 4


@pytest.mark.parametrize("make", [acted, sampled])
def test_the_same_seed_gives_the_same_bits(make: Any) -> None:
    first, second = fit(make(run=TWO)), fit(make(run=TWO))
    assert equal_weights(weights(first), weights(second))
    assert groups_of(first) == groups_of(second)
    other = fit(make(run=dataclasses.replace(TWO, seed=4)))
    assert not equal_weights(weights(first), weights(other))


def test_token_counts() -> None:
    module = fit(acted(run=ONE))
    metrics, groups = module.last_metrics, groups_of(module)
    attempts = [one for each in groups for one in each.interventions]
    children = [one.child for one in attempts if one.child]
    continued = sum(
        len(turn.action_ids) for child in children if child.fork for turn in child.turns[child.fork.step + 1 :]
    )
    assert len(children) == 4
    assert metrics["tokens/generated"] == continued + sum(t.generated_tokens for g in groups for t in g.sampled)
    assert metrics["tokens/role_scored"] == 2 * sum(len(one.log_probs) for one in attempts)
    assert metrics["tokens/scored"] == 0
    trained = [to_samples(g, module.algorithm.advantages(g), Scope.all) for g in groups]
    assert metrics["tokens/trained"] == sum(sum(sample.loss_mask) for each in trained for sample in each)


def test_corrected_tokens_are_trained_with_their_weight() -> None:
    module = fit(acted(run=ONE))
    samples = [s for g in groups_of(module) for s in to_samples(g, module.algorithm.advantages(g), Scope.all)]
    corrected = [
        weight
        for sample in samples
        for author, weight in zip(sample.authors, sample.weights, strict=True)
        if author is Author.CORRECTOR
    ]
    accepted = [weight for g in groups_of(module) for one in g.interventions for weight in one.weights]
    assert sorted(corrected) == sorted(accepted)
    assert len(set(corrected)) > 1


def poison_log_probs(groups: Sequence[Group], iteration: int) -> list[Group]:
    if iteration == 1:
        return list(groups)

    def poisoned(one: Any) -> Any:
        turns = [dataclasses.replace(each, action_log_probs=(math.nan,) * len(each.action_ids)) for each in one.turns]
        return dataclasses.replace(one, turns=tuple(turns))

    return with_trajectories(groups, poisoned)


def test_loss_that_is_not_finite_stops_before_the_weights_are_touched() -> None:
    once = fit(sampled(run=ONE))
    module = sampled(run=TWO)
    module.rollouts.collector = Altered(module.rollouts.collector, poison_log_probs)
    with pytest.raises(DivergedError, match="iteration 2: the policy loss is nan"):
        fit(module)
    assert equal_weights(weights(module), weights(once))
    assert module.iteration == 1


def test_gradient_that_is_not_finite_stops_before_the_weights_are_touched() -> None:
    module = sampled(run=ONE)
    before = weights(module)
    next(module.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(DivergedError, match=r"iteration 1: the gradient norm is (nan|inf)"):
        fit(module)
    assert equal_weights(before, weights(module))


def test_dropout_is_off_whatever_mode_the_model_came_in() -> None:
    def dropping() -> Qwen3ForCausalLM:
        model = tiny_model(sharpen=2.0)
        for module in model.modules():
            if hasattr(module, "attention_dropout"):
                setattr(module, "attention_dropout", 0.5)  # noqa: B010
        return model.train()

    settings = default_settings(AlgorithmSettings, updates=1, learning_rate=1e-3)
    module = fit(sampled(run=ONE, settings=settings, model=dropping()))
    assert module.last_metrics["loss/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert equal_weights(weights(module), weights(fit(sampled(run=ONE, settings=settings))))


def test_reference_exists_only_with_a_kl_term() -> None:
    module = fit(sampled(run=ONE))
    assert module.reference is None
    assert module.last_metrics["loss/kl"] is None


def test_reference_stays_frozen_and_the_kl_grows_from_zero() -> None:
    settings = default_settings(AlgorithmSettings, updates=1, learning_rate=1e-2, beta=0.1)
    module = sampled(run=ONE, settings=settings)
    start = weights(module)
    assert module.reference is not None
    fit(module)
    assert module.last_metrics["loss/kl"] == pytest.approx(0.0, abs=1e-9)
    assert equal_weights(start, module.reference.state_dict())
    assert not equal_weights(start, weights(module))
    later = fit(sampled(run=TWO, settings=settings))
    assert (later.last_metrics["loss/kl"] or 0.0) > 1e-4
    everything = sum(one.generated_tokens for each in groups_of(later) for one in each.trajectories)
    assert later.last_metrics["tokens/trained"] == everything
    assert not any(name.startswith("reference") for name in module.training_state()["model"])


def test_mixed_precision_takes_the_updates_that_fp32_takes() -> None:
    module = sampled(run=ONE)
    before = weights(module)
    fit(module, precision="bf16-mixed")
    after = weights(module)
    assert all(value.dtype is torch.float32 for value in after.values())
    assert all(not torch.equal(before[name], after[name]) for name in after)
    exact = fit(sampled(run=ONE)).last_metrics
    # The second update's ratio tells whether it saw the weights of the first, and not a cached cast of older ones.
    assert (exact["loss/ratio_max"] or 0.0) > 1.02
    for name in ("loss/ratio_max", "policy/gradient_norm", "policy/entropy"):
        assert module.last_metrics[name] == pytest.approx(exact[name], rel=0.02)


@pytest.mark.parametrize("precision", get_args(hints_of(TrainerSettings)["precision"]))
def test_each_precision_trains(precision: str) -> None:
    module = fit(sampled(run=ONE), precision=precision)
    assert (module.last_metrics["updates/steps"] or 0) > 0
    dtype = {"bf16-true": torch.bfloat16, "64-true": torch.float64}.get(precision, torch.float32)
    assert {value.dtype for value in weights(module).values()} == {dtype}


def test_tasks_of_another_iteration_are_refused() -> None:
    module = sampled()
    with pytest.raises(RuntimeError, match="got the tasks of iteration 4 instead of iteration 1"):
        module.training_step(IterationTasks(4, []))


class MemoryLogger(Logger):
    @property
    def name(self) -> str:
        return "memory"

    @property
    def version(self) -> int:
        return 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass


class Shown(Callback):
    """What other callbacks find in the trainer after each iteration."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], dict[str, float]]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        found = (trainer.callback_metrics, trainer.logged_metrics)
        callback, logged = ({name: value.item() for name, value in metrics.items()} for metrics in found)
        self.rows.append((callback, logged))


def test_the_trainer_has_the_metrics_of_each_iteration() -> None:
    shown = Shown()
    module = fit(sampled(run=THREE), [shown])
    numbers = {name: value for name, value in module.last_metrics.items() if value is not None}
    assert len(shown.rows) == 3
    for found in shown.rows[-1]:
        assert found == pytest.approx({**numbers, "step": 3.0})
    assert module.trainer.callback_metrics["step"] == 3.0


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3]), (2, [2, 3]), (50, [3]), (0, [])])
def test_loggers_get_each_so_many_iterations_and_the_last(every: int, steps: list[int]) -> None:
    logger = MemoryLogger()
    fit(sampled(run=THREE), logger=logger, log_every_n_steps=every)
    assert [step for step, _ in logger.rows] == steps


def test_loggers_get_the_iteration_as_step() -> None:
    logger = MemoryLogger()
    module = fit(sampled(run=THREE), logger=logger)
    assert [step for step, _ in logger.rows] == [1, 2, 3]
    assert logger.rows[-1][1]["reward/mean"] == pytest.approx(module.last_metrics["reward/mean"])
    assert "correction/rho_mean" not in logger.rows[-1][1]


class ScaledQwen3(Qwen3ForCausalLM):
    """Does more than decoder and head: its logits are halved."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output: Any = super().forward(*args, **kwargs)
        output.logits = output.logits / 2
        return output


def scaled() -> Qwen3ForCausalLM:
    model = tiny_model()
    model.__class__ = ScaledQwen3
    return model


@pytest.mark.parametrize(("make", "gathers"), [(tiny_model, True), (tiny_gpt2, True), (scaled, False)])
def test_log_probs_and_entropy_equal_those_of_a_full_forward(make: Any, gathers: bool) -> None:
    model = make()
    forward = TrainedPositions(model)
    assert forward.gathers_hidden is gathers
    turns = [turn([1, 9, 4], [7, 2]), turn([5, 4], [8, 2, 30])]
    samples = to_samples(group([trajectory(turns), trajectory(turns[:1], member=1)]), [1.0, -1.0], Scope.all)
    (batch,) = micro_batches(samples, max_tokens=100, total_trained_tokens=7)
    result = forward(batch)
    for row, sample in enumerate(samples):
        distribution = model(input_ids=torch.tensor([sample.token_ids])).logits[0].log_softmax(dim=-1)
        for place, trained in enumerate(sample.loss_mask):
            expected, entropy = 0.0, 0.0
            if trained:
                expected = distribution[place - 1, sample.token_ids[place]].item()
                entropy = -(distribution[place - 1].exp() * distribution[place - 1]).sum().item()
            assert result.log_probs_BT[row, place].item() == pytest.approx(expected, abs=2e-5)
            assert result.entropy_BT[row, place].item() == pytest.approx(entropy, abs=2e-5)
    assert result.log_probs_BT.requires_grad
    assert not result.entropy_BT.requires_grad


def test_a_reference_that_is_padded_keeps_the_batches_small() -> None:
    """Micro-batches count padding as soon as one of the two forward passes has any."""
    module = sampled(run=ONE, settings=default_settings(AlgorithmSettings, beta=0.1))
    assert module.update.packs(module.policy)
    module.update.reference = TrainedPositions(tiny_gpt2())
    assert not module.update.packs(module.policy)
