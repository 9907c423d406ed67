"""The local engine in other precisions."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from rti_exp.engines.base import GenerateRequest, Sampling
from rti_exp.experiment.parts import default_engine
from tests.support.fakes import tiny_model


def test_what_was_computed_in_another_precision_is_not_gone_on_with():
    """Half of what a mixed-precision run does is inside of autocast; keys and values of the two do not mix."""
    model = tiny_model(sharpen=5.0)
    engine = default_engine(model)
    request = GenerateRequest(prompt_ids=tuple(range(3, 33)), sampling=Sampling(max_tokens=6), seed=0)
    plain = engine.generate([request])
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        mixed = engine.generate([request])
        assert mixed == default_engine(model).generate([request])
    assert engine.generate([request]) == plain
    assert mixed[0].log_probs != plain[0].log_probs


class _Casts(TorchDispatchMode):
    """Counts conversions of float32 tensors that have the shape of one of the model's matrices."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.shapes = {parameter.shape for parameter in model.parameters() if parameter.dim() == 2}
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default) and args[0].shape in self.shapes:
            self.count += args[0].dtype is torch.float32
        return func(*args, **(kwargs or {}))


def test_under_autocast_weights_are_cast_once_a_call_and_again_after_they_changed() -> None:
    """The model can be trained afterwards, with casts that autograd knows."""
    model = tiny_model(sharpen=5.0)
    engine = default_engine(model)
    request = GenerateRequest(prompt_ids=tuple(range(3, 33)), sampling=Sampling(max_tokens=12), seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        first = engine.generate([request])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.sync(1)
        with _Casts(model) as casts:
            second = engine.generate([request])
        ids = torch.tensor([[*request.prompt_ids, *second[0].token_ids]])
        log_probs_TV = model(input_ids=ids).logits[0].log_softmax(dim=1)
        log_probs_TV.sum().backward()
    assert len(second[0].token_ids) == 12
    expected = log_probs_TV[range(29, 41), second[0].token_ids].tolist()
    assert second[0].log_probs == pytest.approx(expected, abs=0.1)
    assert second[0].log_probs != first[0].log_probs
    assert 0 < casts.count <= sum(parameter.dim() == 2 for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
