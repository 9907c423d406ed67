import copy

import pytest
import torch
from torch import nn

from rti_exp.config.settings import SettingsError
from rti_exp.models import head as head_module
from rti_exp.models.head import CHUNKED_FROM, can_be_chunked, chunked_log_probs
from rti_exp.models.recompute import recompute_layers
from rti_exp.training.batch import micro_batches
from rti_exp.training.token_log_probs import TrainedPositions
from rti_exp.types import Author, Sample
from tests.support.fakes import tiny_gpt2, tiny_model


def test_log_probs_and_entropy_by_hand():
    head = nn.Linear(2, 3, bias=False)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    hidden = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    log_probs, entropy = chunked_log_probs(head, hidden, torch.tensor([2, 0]))
    # Logits (0, 0, 0) and (2, 1, 0): log 3 and log(e^2 + e + 1) = 2.40760596.
    assert log_probs.tolist() == pytest.approx([-1.0986123, 2.0 - 2.4076060])
    # Of the second, probabilities .66524, .24473, .09003.
    assert entropy.tolist() == pytest.approx([1.0986123, 0.8323956], abs=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_full_logits(monkeypatch, bias, dtype):
    monkeypatch.setattr(head_module, "CHUNK_VALUES", 3 * 40)  # chunks of 3 positions
    torch.manual_seed(0)
    head = nn.Linear(8, 40, bias=bias).to(dtype)
    hidden = (4 * torch.randn(10, 8)).to(dtype).requires_grad_()
    targets, weights = torch.randint(40, (10,)), torch.randn(10)
    other, plain = copy.deepcopy(head), hidden.detach().clone().requires_grad_()
    log_probs, entropy = chunked_log_probs(head, hidden, targets)
    assert not entropy.requires_grad
    (log_probs * weights).sum().backward()
    full = other(plain).float().log_softmax(dim=1)
    (full.gather(1, targets[:, None])[:, 0] * weights).sum().backward()
    tolerance = (1e-5, 1e-6) if dtype is torch.float32 else (2e-2, 2e-2)
    exact = dict(zip(("rtol", "atol"), tolerance, strict=True))
    torch.testing.assert_close(log_probs, full.gather(1, targets[:, None])[:, 0], **exact)
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hidden.grad, plain.grad, **exact)
    torch.testing.assert_close(head.weight.grad, other.weight.grad, **exact)
    if bias:
        torch.testing.assert_close(head.bias.grad, other.bias.grad, **exact)


def batch():
    mask = (False, True, False, True, True)
    sample = Sample(
        token_ids=(1, 7, 3, 250, 9),
        authors=(Author.ENVIRONMENT, Author.POLICY, Author.ENVIRONMENT, Author.POLICY, Author.POLICY),
        loss_mask=mask,
        behaviour_log_probs=(0.0,) * 5,
        weights=(1.0,) * 5,
        advantage=1.0,
        task_id="t",
        member=0,
    )
    (made,) = micro_batches([sample], max_tokens=100, total_trained_tokens=3)
    return made


def gradients(model):
    result = TrainedPositions(model)(batch())
    result.log_probs_BT.sum().backward()
    return result, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_a_large_vocabulary_takes_the_chunked_way_with_the_same_result(monkeypatch):
    plain, plain_gradients = gradients(tiny_model())
    assert not can_be_chunked(tiny_model().get_output_embeddings())
    monkeypatch.setattr(head_module, "CHUNKED_FROM", 400)
    monkeypatch.setattr(head_module, "CHUNK_VALUES", 800)
    assert can_be_chunked(tiny_model().get_output_embeddings())
    chunked, chunked_gradients = gradients(tiny_model())
    torch.testing.assert_close(chunked.log_probs_BT, plain.log_probs_BT, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(chunked.entropy_BT, plain.entropy_BT, rtol=1e-5, atol=1e-5)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(chunked_gradients[name], gradient, rtol=1e-3, atol=1e-4)


def test_no_trained_position_gives_nothing():
    head = nn.Linear(4, CHUNKED_FROM)
    log_probs, entropy = chunked_log_probs(
        head, torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.long)
    )
    assert log_probs.shape == entropy.shape == (0,)
    log_probs.sum().backward()


def stored_values(model) -> int:
    """Values that autograd keeps between the forward and the backward pass."""
    stored: list[int] = []

    def keep(tensor):
        stored.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gradients(model)
    return sum(stored)


@pytest.mark.parametrize("make", [tiny_model, tiny_gpt2])
def test_recomputed_layers_give_the_same_gradients_and_store_less(make):
    plain, recomputed = make(), make()
    recompute_layers(recomputed)
    assert not recomputed.training
    sizes = [stored_values(model) for model in (plain, recomputed)]
    assert sizes[1] < sizes[0] / 2
    for (name, one), other in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_a_copy_of_a_recomputed_model_is_its_own():
    model = tiny_model()
    recompute_layers(model)
    frozen = copy.deepcopy(model).requires_grad_(False)
    before = frozen(torch.tensor([[1, 2, 3]])).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    assert torch.equal(frozen(torch.tensor([[1, 2, 3]])).logits, before)


def test_a_model_without_layers_is_told():
    with pytest.raises(SettingsError, match="has no layers that can be recomputed"):
        recompute_layers(nn.Linear(2, 2))  # pyright: ignore[reportArgumentType]
