"""The packed decoder gives the model's log-probs, entropies and gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from rti_exp.compiled_qwen3 import autograd_steps
from rti_exp.config.defaults import default_settings
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.models.adapters import add_lora
from rti_exp.training.batch import Batch, micro_batches
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Sample
from tests.support.fakes import tiny_model
from tests.support.qwen3 import with_random_norms

ROWS = (
    (3, 9, 27, 81, 5, 0, 6),
    (3, 9, 27, 81, 7),
    (3, 9, 27, 81, 5, 0, 6, 8, 8, 30, 41),
    (50, 9, 8),
    (3, 9, 27, 81, 7),
)
"""A row within another one, one that comes twice, and the padding token, whose embedding is not trained."""


def batch_of(rows: Sequence[Sequence[int]]) -> Batch:
    samples = [
        Sample(
            token_ids=tuple(row),
            authors=(Author.POLICY,) * len(row),
            loss_mask=tuple(place >= 2 for place in range(len(row))),
            behaviour_log_probs=(0.0,) * len(row),
            weights=(1.0,) * len(row),
            advantage=1.0,
            task_id="t",
            member=member,
        )
        for member, row in enumerate(rows)
    ]
    (batch,) = micro_batches(samples, max_tokens=10**6, total_trained_tokens=1)
    return batch


def model_of(hidden_size: int = 32) -> Any:
    """Four heads of a quarter of the width."""
    model = tiny_model(hidden_size=hidden_size)
    torch.manual_seed(2)
    return with_random_norms(model)


def trained(model: Any, batch: Batch, *, packed: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probs, entropies, and the gradients of a sum in which each log-prob has another weight."""
    forward = TrainedPositions(model)
    if not packed:
        forward._fast = None
    assert forward.packs is packed
    result = forward(batch)
    weights_BT = torch.linspace(-1, 1, result.log_probs_BT.numel()).view_as(result.log_probs_BT)
    (result.log_probs_BT * weights_BT).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return result.log_probs_BT.detach(), result.entropy_BT, gradients


def long_rows() -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(400, (length,), generator=draw).tolist() for length in (150, 148, 90)]


@pytest.mark.parametrize(
    ("hidden_size", "rows"),
    [(32, ROWS), (128, [*ROWS, [3, 9, *range(5, 85)], [3, 9, *range(5, 80)]]), (32, long_rows())],
    ids=["heads of 8", "heads of 32", "long rows"],
)
def test_log_probs_entropies_and_gradients_are_the_models(hidden_size: int, rows: Sequence[Sequence[int]]) -> None:
    model, batch = model_of(hidden_size), batch_of(rows)
    expected, result = (trained(model, batch, packed=packed) for packed in (False, True))
    for part, expected_part in zip(result[:2], expected[:2], strict=True):
        torch.testing.assert_close(part, expected_part, rtol=1e-4, atol=1e-4)
        assert expected_part.abs().max() > 0.5
    for name, gradient in expected[2].items():
        assert (result[2][name] - gradient).abs().max() <= 1e-3 * gradient.abs().max(), name
        assert gradient.abs().max() > 0, name


def test_the_same_row_twice_has_twice_the_gradient() -> None:
    model = model_of()
    gradients = []
    for rows in (ROWS[:1], ROWS[:1] * 2):
        TrainedPositions(model)(batch_of(rows)).log_probs_BT.sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 2 * gradient, rtol=1e-4, atol=1e-4)


def test_the_fast_path_survives_training() -> None:
    """Rounding grows with the weights; a resumed run verifies the initial weights, as the unbroken run did."""
    model = model_of()
    forward = TrainedPositions(model)
    assert forward.packs
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_norm.weight.mul_(16)
            layer.self_attn.k_norm.weight.mul_(16)
    assert forward.packs


def test_current_weights_are_read() -> None:
    model, batch = model_of(), batch_of(ROWS)
    forward = TrainedPositions(model)
    before = forward(batch).log_probs_BT
    changed = copy.deepcopy(model)
    for each in (model, changed):
        with torch.no_grad():
            each.model.layers[1].self_attn.k_norm.weight.mul_(3)
    after = forward(batch).log_probs_BT
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after.detach(), trained(changed, batch, packed=False)[0], rtol=1e-4, atol=2e-5)


def test_autocast_takes_the_models_own_forward_pass() -> None:
    forward = TrainedPositions(tiny_model())
    assert forward.packs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not forward.packs
    assert forward.packs


def test_adapters_that_are_added_later_are_trained() -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = model_of()
    forward, batch = TrainedPositions(model), batch_of(ROWS)
    before = forward(batch).log_probs_BT
    add_lora(model, default_settings(LoraSettings, rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    after = forward(batch).log_probs_BT
    assert not forward.packs
    assert (after - before).abs().max() > 1e-2


def test_matmul_shapes_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN compiles a matmul for each shape: tokens, and trained tokens, are rounded up to multiples of 64."""
    shapes: set[int] = set()
    forward, times = TrainedPositions(model_of(128)), autograd_steps.times_transposed
    monkeypatch.setattr(
        autograd_steps, "times_transposed", lambda left, right: shapes.add(len(left)) or times(left, right)
    )
    for length in (5, 40, 64, 66):
        forward(batch_of([range(3, 3 + length)])).log_probs_BT.sum().backward()
    assert shapes == {64, 128}
