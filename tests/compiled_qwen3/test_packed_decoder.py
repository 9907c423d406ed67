"""The packed decoder gives what the model gives, gradients included, and is taken for a plain Qwen3 only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from rti_exp.compiled_qwen3 import fused
from rti_exp.compiled_qwen3 import packed_decoder as packed
from rti_exp.compiled_qwen3.compilation import can_compile
from rti_exp.config.policy_settings import LoraSettings
from rti_exp.models.adapters import add_lora
from rti_exp.models.recompute import recompute_layers
from rti_exp.training import token_log_probs as forward_module
from rti_exp.training.batch import Batch, micro_batches
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Sample
from tests.support.fakes import tiny_gpt2, tiny_model

ROWS = (
    (3, 9, 27, 81, 5, 0, 6),
    (3, 9, 27, 81, 7),
    (3, 9, 27, 81, 5, 0, 6, 8, 8, 30, 41),
    (50, 9, 8),
    (3, 9, 27, 81, 7),
)
"""A row within another one, one that comes twice, and the padding token, whose embedding is not trained."""


def batch_of(rows: Sequence[Sequence[int]], first_trained: int = 2) -> Batch:
    samples = [
        Sample(
            token_ids=tuple(row),
            authors=(Author.POLICY,) * len(row),
            loss_mask=tuple(place >= first_trained for place in range(len(row))),
            behaviour_log_probs=(0.0,) * len(row),
            weights=(1.0,) * len(row),
            advantage=1.0,
            task_id="t",
            member=member,
        )
        for member, row in enumerate(rows)
    ]
    (made,) = micro_batches(samples, max_tokens=10**6, total_trained_tokens=1)
    return made


def sharp(hidden_size: int = 32) -> Any:
    """Weights of norms that differ, so that one left out is seen."""
    model: Any = tiny_model(hidden_size=hidden_size)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    return model


def trained(model: Any, batch: Batch, *, packed: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Log-probs, entropies, and the gradients of a sum in which each log-prob has a weight of its own."""
    forward = TrainedPositions(model)
    if not packed:
        forward._packed = None
    assert forward.packs is packed
    found = forward(batch)
    weights_BT = torch.linspace(-1, 1, found.log_probs_BT.numel()).view_as(found.log_probs_BT)
    (found.log_probs_BT * weights_BT).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found.log_probs_BT.detach(), found.entropy_BT, gradients


@pytest.mark.parametrize("attention", ["torch's", "ours", "ours, large scores"])
def test_log_probs_entropies_and_gradients_are_the_models(monkeypatch: pytest.MonkeyPatch, attention: str) -> None:
    if attention != "torch's":
        monkeypatch.setattr(fused, "_SHORTEST", 1)
        monkeypatch.setattr(fused, "_BLOCK", 4)
    if attention == "ours, large scores":
        monkeypatch.setattr(fused, "SAFE_SCORE", 0.0)
    model, batch = sharp(), batch_of(ROWS)
    own, found = (trained(model, batch, packed=packed) for packed in (False, True))
    for one, other in zip(own[:2], found[:2], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=2e-5)
        assert one.abs().max() > 0.5
    for name, gradient in own[2].items():
        assert (found[2][name] - gradient).abs().max() <= 1e-4 * gradient.abs().max(), name
        assert gradient.abs().max() > 0, name


@pytest.mark.parametrize("compiled", [True, False])
def test_heads_of_32_are_the_models(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """Where Numba is installed, attention is compiled for them."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    if compiled and not can_compile():
        pytest.skip("Numba does not work here")
    if not compiled:
        monkeypatch.setattr(fused, "can_compile", lambda: False)
    taken: list[Tensor] = []
    takes = packed.takes
    monkeypatch.setattr(packed, "takes", lambda heads: taken.append(heads) or takes(heads))
    model, batch = sharp(128), batch_of([*ROWS, [3, 9, *range(5, 85)], [3, 9, *range(5, 80)]])
    own, found = (trained(model, batch, packed=packed_way) for packed_way in (False, True))
    assert taken
    assert takes(taken[0]) is compiled
    for one, other in zip(own[:2], found[:2], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
    for name, gradient in own[2].items():
        assert (found[2][name] - gradient).abs().max() <= 1e-3 * gradient.abs().max(), name


def test_long_rows_are_the_models() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(400, (length,), generator=draw).tolist() for length in (150, 148, 90)]
    model, batch = sharp(), batch_of(rows)
    own, found = (trained(model, batch, packed=packed) for packed in (False, True))
    torch.testing.assert_close(found[0], own[0], rtol=1e-4, atol=1e-4)
    for name, gradient in own[2].items():
        assert (found[2][name] - gradient).abs().max() <= 1e-3 * gradient.abs().max(), name


def test_the_same_row_twice_has_twice_the_gradient() -> None:
    model = sharp()
    gradients = []
    for rows in (ROWS[:1], ROWS[:1] * 2):
        TrainedPositions(model)(batch_of(rows)).log_probs_BT.sum().backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 2 * gradient, rtol=1e-4, atol=1e-4)


def hooked() -> Any:
    model: Any = tiny_model()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    return model


def patched() -> Any:
    """A change that no attribute shows: it is noticed when the packed decoder is tried out."""
    model: Any = tiny_model()
    block = model.model.layers[1].mlp
    own = block.forward
    block.forward = lambda states: own(states) + 1
    return model


def recomputed() -> Any:
    model = tiny_model()
    recompute_layers(model)
    return model


def windowed() -> Any:
    """Its window is longer than the rows that are tried out."""
    values = {key: value for key, value in tiny_model().config.to_dict().items() if key != "layer_types"}
    window = {"use_sliding_window": True, "sliding_window": 200, "max_window_layers": 0}
    return Qwen3ForCausalLM(Qwen3Config(**{**values, **window}))


def with_module(make_module: Callable[[Any], nn.Module], name: str) -> Callable[[], Any]:
    def made() -> Any:
        model: Any = tiny_model()
        block = model.model if name == "embed_tokens" else model.model.layers[1].mlp
        setattr(block, name, make_module(getattr(block, name)))
        return model

    return made


def biased(old: nn.Linear) -> nn.Linear:
    """A bias of 0, which changes no state and would not be trained."""
    new = nn.Linear(old.in_features, old.out_features)
    new.weight = old.weight
    nn.init.zeros_(new.bias)
    return new


def counted(old: nn.Embedding) -> nn.Embedding:
    return nn.Embedding(old.num_embeddings, old.embedding_dim, scale_grad_by_freq=True, _weight=old.weight.detach())


@pytest.mark.parametrize(
    "make",
    [
        windowed,
        with_module(biased, "up_proj"),
        with_module(nn.Sequential, "up_proj"),
        with_module(counted, "embed_tokens"),
    ],
)
def test_what_trying_out_would_not_show_is_seen_beforehand(make: Callable[[], Any]) -> None:
    assert not TrainedPositions(make()).packs


@pytest.mark.parametrize(
    "make",
    [hooked, patched, recomputed, tiny_gpt2, lambda: tiny_model(attention="eager"), lambda: tiny_model().bfloat16()],
)
def test_other_models_are_called_as_they_are(make: Callable[[], Any]) -> None:
    assert not TrainedPositions(make()).packs


def test_large_models_are_called_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_weights = sum(4 * parameter.numel() for parameter in tiny_model().parameters())
    monkeypatch.setattr(forward_module, "PACKED_BYTES", bytes_of_weights)
    assert TrainedPositions(tiny_model()).packs
    monkeypatch.setattr(forward_module, "PACKED_BYTES", bytes_of_weights - 1)
    assert not TrainedPositions(tiny_model()).packs


def test_what_training_makes_of_the_weights_changes_no_path() -> None:
    """Rounding grows with the weights; a resumed run is built with the first ones and loads its own later."""
    model: Any = sharp()
    forward = TrainedPositions(model)
    assert forward.packs
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_norm.weight.mul_(16)
            layer.self_attn.k_norm.weight.mul_(16)
    assert forward.packs


def test_autocast_takes_the_models_own_way() -> None:
    forward = TrainedPositions(tiny_model())
    assert forward.packs
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not forward.packs
    assert forward.packs


def test_adapters_that_come_later_are_trained() -> None:
    pytest.importorskip("peft", reason="the extra lora is not installed")
    model = sharp()
    forward, batch = TrainedPositions(model), batch_of(ROWS)
    before = forward(batch).log_probs_BT
    add_lora(model, LoraSettings(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    after = forward(batch).log_probs_BT
    assert not forward.packs
    assert (after - before).abs().max() > 1e-2


def test_the_weights_of_now_are_read() -> None:
    model, batch = sharp(), batch_of(ROWS)
    forward = TrainedPositions(model)
    before = forward(batch).log_probs_BT
    changed = copy.deepcopy(model)
    for one in (model, changed):
        with torch.no_grad():
            one.model.layers[1].self_attn.k_norm.weight.mul_(3)
    after = forward(batch).log_probs_BT
    assert (after - before).abs().max() > 1e-2
    torch.testing.assert_close(after.detach(), trained(changed, batch, packed=False)[0], rtol=1e-4, atol=2e-5)


def test_shapes_come_again() -> None:
    """oneDNN compiles a matmul for each shape: tokens, and those that are trained, are rounded up to 64s."""
    shapes: set[int] = set()
    model: Any = sharp(128)
    forward = TrainedPositions(model)
    times = fused.times_transposed
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused, "times_transposed", lambda left, right: shapes.add(len(left)) or times(left, right))
        for length in (5, 40, 64, 66):
            forward(batch_of([range(3, 3 + length)])).log_probs_BT.sum().backward()
    assert shapes == {64, 128}


@pytest.mark.parametrize(("count", "made"), [(1, 64), (64, 64), (65, 128), (1024, 1024), (1025, 1152), (2049, 2304)])
def test_large_numbers_are_rounded_up_by_an_eighth_at_most(count: int, made: int) -> None:
    found = packed.padded(torch.arange(1, count + 1))
    assert len(found) == made
    assert found[:count].tolist() == list(range(1, count + 1))
    assert not found[count:].any()


@pytest.mark.parametrize("step", ["norm", "choose_backward"])
def test_compiled_code_that_fails_is_told_and_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr("rti_exp.compiled_qwen3.compilation._failed", [])
    if not can_compile():
        pytest.skip("Numba does not work here")

    def fails(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fused.kernels(), step, fails)
    model, batch = sharp(), batch_of(ROWS)
    found, own = (trained(model, batch, packed=packed_way) for packed_way in (True, False))
    assert [record.getMessage() for record in caplog.records] == [
        "compiled code does not work here (OSError: [Errno 28] No space left on device): "
        "torch's operations are taken instead"
    ]
    torch.testing.assert_close(found[0], own[0], rtol=1e-4, atol=2e-5)


def test_what_fails_without_compiled_code_too_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rti_exp.compiled_qwen3.compilation._failed", [])

    def fails(*_arguments: object) -> Tensor:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(fused, "transposed_times", fails)  # backward only
    assert not TrainedPositions(tiny_model()).packs


def test_a_small_vocabulary_is_tried_out_too(caplog: pytest.LogCaptureFixture) -> None:
    assert TrainedPositions(tiny_model(vocab_size=30)).packs
    assert caplog.messages == []
